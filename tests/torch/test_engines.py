"""Both engines, at every stage and world size, train what one plain process trains."""

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from small_tasks import NETS, NetTask, Run, make_config, micro_batches, reference_run
from torch.distributed.tensor import DTensor

from workers.contract.batch import plan_batch
from workers.engines import Engine, build_engine
from workers.schedule import learning_rate
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

ENGINES = {
    "ddp": {"engine__kind": "ddp"},
    "fsdp-2": {"engine__kind": "fsdp", "engine__zero_stage": 2},
    "fsdp-3": {"engine__kind": "fsdp", "engine__zero_stage": 3},
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def model_weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("model."): whole(tensor)
        for name, tensor in engine.state().items()
        if name.startswith("model.")
    }


def train_net(world: World, net: str, changes: dict[str, Any]) -> Run:
    config = make_config(**changes)
    task = NetTask(NETS[net])
    engine = build_engine(config, task, world)
    batch = config.train.batch
    plan = plan_batch(global_sequences=batch.global_sequences, world_size=world.world_size, micro=batch.micro)
    run = Run(losses=[], norms=[], weights={})
    for step in range(config.train.steps):
        output = engine.train_step(
            micro_batches(task, config, plan, step=step, rank=world.rank),
            learning_rate=learning_rate(step, config.train),
        )
        assert output.is_finite
        run.losses.append(output.loss)
        run.norms.append(output.grad_norm)
    run.weights = model_weights(engine)
    return run


def train_all(world: World, runs: list[tuple[str, dict[str, Any]]]) -> list[Run]:
    return [train_net(world, net, changes) for net, changes in runs]


@functools.cache
def reference(net: str, **changes: Any) -> Run:
    return reference_run(NetTask(NETS[net]), make_config(**changes))


def assert_equal_runs(run: Run, expected: Run, tolerance: float = 1e-5) -> None:
    assert run.losses == pytest.approx(expected.losses, rel=tolerance, abs=tolerance)
    assert run.norms == pytest.approx(expected.norms, rel=tolerance, abs=tolerance)
    assert run.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        assert run.weights[name].shape == weight.shape, name
        torch.testing.assert_close(run.weights[name], weight, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_net_trains_as_in_one_process(ranks: "Launcher", engine: str, world_size: int) -> None:
    """B012, B014, B021, B022, B025, B026, B030: tied, shared, unused, tiny, empty, uneven and frozen parameters."""
    changes = ENGINES[engine] | {"train__batch__micro": 2, "train__steps": 8}
    for results in ranks(train_all, world_size, [(net, changes) for net in NETS]):
        for net, run in zip(NETS, results, strict=True):
            try:
                assert_equal_runs(run, reference(net, train__steps=8))
            except AssertionError as error:
                raise AssertionError(f"net {net!r} with {engine} on {world_size} ranks: {error}") from error
