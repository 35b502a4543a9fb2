"""An engine with its data, run step by step on every rank, and compared with the plain one-process trainer."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from small_tasks import NetTask, Run, make_config, make_task, micro_batches, reference_run
from torch.distributed.tensor import DTensor

from workers.contract.batch import plan_batch
from workers.engines import StepOutput, WeightedBatch, build_engine
from workers.engines.flat_shard import FlatShard
from workers.schedule import learning_rate
from workers.world import World

ENGINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ddp": {"engine__kind": "ddp"},
    "fsdp-2": {"engine__kind": "fsdp", "engine__zero_stage": 2},
    "fsdp-3": {"engine__kind": "fsdp", "engine__zero_stage": 3},
    **{
        f"deepspeed-{stage}": {"engine__kind": "deepspeed", "engine__zero_stage": stage} for stage in range(4)
    },
}

LOW: Final = {
    name: changes for name, changes in ENGINES.items() if name != "deepspeed-0"
}  # those that train in bf16
HALF: Final = {
    name: changes for name, changes in ENGINES.items() if not name.startswith("deepspeed")
}  # those that train in fp16 on a CPU


def whole(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FlatShard):
        total = torch.zeros(tensor.shape, dtype=tensor.local.dtype)
        total.view(-1)[tensor.start : tensor.start + tensor.local.numel()] = tensor.local
        dist.all_reduce(total)
        return total
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def local(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FlatShard):
        return tensor.local
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Trainer:
    """An engine with its data, step by step."""

    def __init__(self, world: World, task: NetTask, changes: Mapping[str, Any], **options: Any) -> None:
        self.config = make_config(**changes)
        self.task = task
        self.engine = build_engine(self.config, task, world, **options)
        batch = self.config.train.batch
        self._rank = world.rank
        self._plan = plan_batch(
            global_sequences=batch.global_sequences, world_size=world.world_size, micro=batch.micro
        )

    def micro_batches(self, step: int) -> Sequence[WeightedBatch]:
        return micro_batches(self.task, self.config, self._plan, step=step, rank=self._rank)

    def step(self, step: int) -> StepOutput:
        return self.engine.train_step(
            self.micro_batches(step), learning_rate=learning_rate(step, self.config.train)
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix("model."): whole(tensor)
            for name, tensor in self.engine.state().items()
            if name.startswith("model.")
        }

    def run(self) -> Run:
        outputs = [self.step(step) for step in range(self.config.train.steps)]
        assert all(output.is_finite for output in outputs)
        return Run(
            losses=[output.loss for output in outputs],
            norms=[output.grad_norm for output in outputs],
            weights=self.weights(),
        )


def train_all(world: World, runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Run]:
    return [Trainer(world, make_task(**task), changes).run() for task, changes in runs]


@functools.cache
def reference(net: str, scale: float = 1.0, **changes: Any) -> Run:
    return reference_run(make_task(net, scale=scale), make_config(**changes))


def assert_equal_runs(run: Run, expected: Run, tolerance: float = 1e-5) -> None:
    assert run.losses == pytest.approx(expected.losses, rel=tolerance, abs=tolerance)
    assert run.norms == pytest.approx(expected.norms, rel=tolerance, abs=tolerance)
    assert run.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        assert run.weights[name].shape == weight.shape, name
        torch.testing.assert_close(run.weights[name], weight, rtol=tolerance, atol=tolerance, msg=name)
