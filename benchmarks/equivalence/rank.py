"""One rank of a run: the engine that a job file's `engine` names, driven step by step as the loop drives it."""

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from benchmarks.equivalence.matrix import STEPS, Cell
from benchmarks.equivalence.model import Sequences, make_task
from benchmarks.equivalence.reference import Run
from workers.contract.batch import BatchPlan, plan_batch
from workers.contract.config import TrainingConfig
from workers.engines import WeightedBatch, build_engine
from workers.engines.deepspeed import library
from workers.engines.flat_shard import FlatShard
from workers.models.task import Task
from workers.random_streams import stream_seed
from workers.schedule import learning_rate
from workers.world import World


def train_all(world: World, chosen: Sequence[Cell], *, nvme_path: str, steps: int = STEPS) -> list[Run]:
    """Train one cell after the other on this rank; collective."""
    runs = []
    for cell in chosen:
        runs.append(train(world, cell, nvme_path=nvme_path, steps=steps))
        forget_groups()
    return runs


def train(world: World, cell: Cell, *, nvme_path: str, steps: int = STEPS) -> Run:
    """Train `cell` on this rank; collective. The weights of the result are whole, on every rank."""
    library.SMALLEST_FILE_BYTES = 1024  # a job's bound is a megabyte, and nothing here is as large
    config = TrainingConfig.model_validate(cell.training.job(cell.variant, nvme_path=nvme_path, steps=steps))
    task = make_task(cell.training)
    engine = build_engine(config, task, world)
    batch = config.train.batch
    plan = plan_batch(global_sequences=batch.global_sequences, world_size=world.world_size, micro=batch.micro)
    outputs = [
        engine.train_step(
            micro_batches(task, config, plan, step=step, rank=world.rank),
            learning_rate=learning_rate(step, config.train),
        )
        for step in range(steps)
    ]
    return Run(
        losses=[output.loss for output in outputs],
        norms=[output.grad_norm for output in outputs],
        weights={
            name.removeprefix("model."): whole(tensor)
            for name, tensor in engine.state().items()
            if name.startswith("model.")
        },
    )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the whole tensor of which this rank may hold a part; collective."""
    if isinstance(tensor, FlatShard):
        total = torch.zeros(tensor.shape, dtype=tensor.local.dtype)
        total.view(-1)[tensor.start : tensor.start + tensor.local.numel()] = tensor.local
        dist.all_reduce(total)
        return total
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def forget_groups() -> None:
    """Let one process build more than one engine, which no job does: DeepSpeed 0.19.8 makes groups of hpZ only once."""
    if (groups := sys.modules.get("deepspeed.utils.groups")) is not None:
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # type: ignore[attr-defined]


def micro_batches(
    task: Task, config: TrainingConfig, plan: BatchPlan, *, step: int, rank: int
) -> Sequence[WeightedBatch]:
    """Cut a step for this rank; a micro-batch of no sequences reads one all the same, uncounted."""
    found = []
    for cut in plan.micro_batches(step=step, rank=rank):
        batch = Sequences().batch(range(cut.first, cut.first + max(cut.count, 1)))
        is_counted = cut.count > 0
        seed = stream_seed(seed=config.train.seed, step=step, first_index=cut.first)
        tokens = task.num_tokens(batch) if is_counted else 0
        found.append(WeightedBatch(batch=batch, num_tokens=tokens, seed=seed, is_counted=is_counted))
    return found
