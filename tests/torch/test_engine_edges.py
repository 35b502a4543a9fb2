"""What users' modules do to engines: layers that come and go, adapters, uneven tokens, evaluation between steps."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, Trainer, assert_equal_runs, local, reference, train_all
from small_tasks import WIDTH, Rows, make_task
from torch.distributed.tensor import DTensor

from workers.engines import WeightedBatch, forward_order
from workers.random_streams import seed_streams
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

HYBRID = ENGINES["fsdp-3"] | {"engine__shard_group_size": 2}
ALL = {**ENGINES, "hybrid": HYBRID}
SAME_USE = ("deepspeed-2", "deepspeed-3")  # where all ranks have to use the same parameters


def test_layers_that_change_from_step_to_step_train_as_in_one_process(ranks: "Launcher") -> None:
    """B024: layer A in even steps, B in odd ones, under every engine."""
    (results, *_) = ranks(train_all, 2, [({"net": "alternating"}, changes) for changes in ENGINES.values()])
    for run in results:
        assert_equal_runs(run, reference("alternating"))


def test_layers_that_change_between_micro_batches_train_alike_under_every_engine(ranks: "Launcher") -> None:
    """B024: what a layer summed up in an earlier micro-batch is not left behind by a last one without that layer."""
    cut = {"train__batch__micro": 1, "train__batch__global_sequences": 8}
    (results, *_) = ranks(train_all, 4, [({"net": "alternating"}, changes | cut) for changes in ALL.values()])
    for run in results[1:]:
        assert_equal_runs(run, results[0])


@pytest.mark.parametrize("world_size", [2, 4])
def test_experts_that_only_some_ranks_use_train_as_in_one_process(ranks: "Launcher", world_size: int) -> None:
    """B024: within one unit each rank calls the layers that its rows ask for."""
    few = {"train__batch__global_sequences": 8, "train__batch__micro": 1}
    exact = [changes for name, changes in ALL.items() if name not in SAME_USE]
    (results, *_) = ranks(train_all, world_size, [({"net": "experts"}, changes | few) for changes in exact])
    for run in results:
        assert_equal_runs(run, reference("experts", **few))


@pytest.mark.parametrize("engine", SAME_USE)
def test_experts_that_deepspeed_would_add_up_wrongly_are_refused(ranks: "Launcher", engine: str) -> None:
    """B024: with the layer, the rank and what trains it, on every rank that still stands."""
    few = {"train__batch__global_sequences": 8, "train__batch__micro": 1}
    outcomes = ranks.start(train_all, 2, [({"net": "experts"}, ENGINES[engine] | few)]).outcomes()
    said = [outcome for outcome in outcomes if outcome.error_type == "ConfigError"]
    assert said
    for outcome in said:
        assert "experts." in outcome.error
        assert f"rank {outcome.rank}" in outcome.error


def train_rank_dependent(world: World, changes: dict[str, Any]) -> Any:
    forward_order.ORDER_SECONDS = 1.0
    run = Trainer(world, make_task("rank_dependent"), changes).run()
    return run.losses, run.weights


def test_ranks_that_run_different_layers_train_under_ddp(ranks: "Launcher") -> None:
    """B024: and end with the same weights."""
    (losses, weights), (other_losses, other_weights) = ranks(train_rank_dependent, 2, dict(ENGINES["ddp"]))
    assert losses == other_losses
    assert all(weight.equal(other_weights[name]) for name, weight in weights.items())


@pytest.mark.parametrize("engine", ["fsdp-2", "fsdp-3"])
def test_ranks_that_run_different_layers_are_named_under_fsdp(ranks: "Launcher", engine: str) -> None:
    """B024: before shards of two layers could mix, or ranks wait for each other."""
    follower, other = ranks.start(train_rank_dependent, 2, dict(ENGINES[engine])).outcomes()
    assert other.error_type == "ConfigError"
    assert "rank 1 came to blocks.1 where ranks [0] ran blocks.0 (layer 1 of forward)" in other.error
    assert "use `kind: ddp`" in other.error
    assert follower.error_type is not None


def adapter_runs(world: World, engines: list[dict[str, Any]]) -> list[Any]:
    modes = ("none", "selective", "full")
    runs = [
        ({"net": "adapters", "deferred": True}, changes | {"engine__activation_checkpointing": mode})
        for changes in engines
        for mode in modes
    ]
    return train_all(world, runs)


def test_adapters_train_alike_whatever_is_kept_for_backward(ranks: "Launcher") -> None:
    """B017, B018: without a parameter that is not decayed, frozen ones below; to the bit, and as one process does."""
    (results, *_) = ranks(adapter_runs, 2, [dict(changes) for changes in ENGINES.values()])
    for first in range(0, len(results), 3):
        plain, *others = results[first : first + 3]
        for run in others:
            assert run.losses == plain.losses
            assert all(run.weights[name].equal(weight) for name, weight in plain.weights.items())
        for name, weight in plain.weights.items():
            is_adapter = name.endswith(("reduce.weight", "expand.weight"))
            assert weight.equal(reference("adapters").weights[name]) == (not is_adapter)


def counted_batch(tokens: int, seed: int) -> WeightedBatch:
    """Return rows of 4 positions of which the first `tokens` count."""
    rows = -(-tokens // 4)
    x = torch.randn(rows, 4, WIDTH, generator=torch.Generator().manual_seed(seed))
    counted = (torch.arange(rows * 4) < tokens).view(rows, 4)
    return WeightedBatch(
        batch={"x": x, "y": x.sum(-1, keepdim=True), "counted": counted}, num_tokens=tokens, seed=seed
    )


def step_over_uneven_tokens(world: World, changes: dict[str, Any]) -> tuple[float, float, int]:
    trainer = Trainer(world, make_task("plain"), changes)
    mine = [(1, 20), (3, 7)][world.rank]
    output = trainer.engine.train_step([counted_batch(tokens, tokens) for tokens in mine], learning_rate=0.1)
    return output.loss, output.grad_norm, output.tokens


def test_a_token_weighs_the_same_in_a_short_and_in_a_long_micro_batch(ranks: "Launcher") -> None:
    """B037: 1, 3, 7 and 20 counted tokens over 2 ranks are one mean over 31."""
    task = make_task("plain")
    seed_streams(0)
    module = task.build()
    loss = sum(task.loss_sum(module, counted_batch(tokens, tokens).batch) for tokens in (1, 3, 7, 20)) / 31
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters()])
    for changes in ENGINES.values():
        for found in ranks(step_over_uneven_tokens, 2, dict(changes)):
            assert found == pytest.approx((loss.item(), norm.item(), 31), rel=1e-5)


def evaluate_between_steps(world: World, changes: dict[str, Any]) -> list[float]:
    trainer = Trainer(world, make_task("statistics"), changes)
    engine, batches = trainer.engine, trainer.micro_batches(3)
    trainer.step(0)
    before = {name: local(tensor).clone() for name, tensor in engine.state().items()}
    found = [engine.evaluate(batches).loss for _ in range(2)]
    assert all(local(tensor).equal(before[name]) for name, tensor in engine.state().items())
    assert all(parameter.grad is None for parameter in trainer.task.module.parameters())
    for name, tensor in engine.state().items():
        if name.startswith("model."):
            local(tensor).zero_()
    engine.after_load()
    return [*found, engine.evaluate(batches).loss, trainer.step(1).loss]


def test_evaluation_touches_nothing_and_sees_what_was_loaded(ranks: "Launcher") -> None:
    """Also under stage 2, which keeps what it gathered: weights that are loaded next are gathered anew."""
    y, y_of_step = _counted_targets(3), _counted_targets(1)
    for changes in ALL.values():
        for results in ranks(evaluate_between_steps, 4, dict(changes) | {"train__batch__micro": 2}):
            first, again, zeroed, trained = results
            assert first == again
            assert zeroed == pytest.approx(float(y.square().mean()), rel=1e-5)
            assert trained == pytest.approx(float(y_of_step.square().mean()), rel=1e-5)


def _counted_targets(step: int) -> torch.Tensor:
    """Return the targets of a step that count: what a model of zeros is off by."""
    batch = Rows().batch(range(step * 10, step * 10 + 10))
    return batch["y"].squeeze(-1)[batch["counted"]]


def places_of_state(world: World, changes: dict[str, Any]) -> set[str]:
    torch.cuda.is_available = lambda: True  # a driver is there, and none of our business
    torch.cuda.device_count = lambda: 1
    trainer = Trainer(world, make_task("house"), changes)
    trainer.step(0)
    assert trainer.task.module is not None
    tensors = [*trainer.engine.state().values(), *trainer.task.module.buffers()]
    meshes = {t.device_mesh.device_type for t in tensors if isinstance(t, DTensor)}
    return {tensor.device.type for tensor in tensors} | meshes


def test_a_group_on_the_cpu_stays_there_where_a_gpu_is_visible(ranks: "Launcher") -> None:
    """B152."""
    for changes in ENGINES.values():
        assert ranks(places_of_state, 2, dict(changes)) == [{"cpu"}] * 2
