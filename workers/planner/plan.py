"""The plan of a job: reads the model, traces it, and puts the matrix together. Needs no GPU, no weights and no cluster."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from workers.contract.batch import plan_batch
from workers.contract.config import TaskData, TrainingConfig
from workers.contract.plan import HEADROOM, Plan
from workers.engines.precision import torch_dtype
from workers.models import load_task
from workers.models.task import Task
from workers.planner.activations import Activations, trace
from workers.planner.matrix import CHECKPOINTING, Ask, largest_micro, recommend, rows
from workers.planner.shape import read_shape


def make_plan(
    config: TrainingConfig,
    *,
    name: str,
    workers: int,
    device: str | None = None,
    device_bytes: int | None = None,
) -> Plan:
    """Return the plan of a job at one width. Raises what the task raises where its model or data cannot be read."""
    task = load_task(config)
    batch = config.train.batch
    cut = plan_batch(global_sequences=batch.global_sequences, world_size=workers, micro=batch.micro)
    compute = torch_dtype(config.train.precision.params)
    module = task.build()
    shape = read_shape(module, task.blocks(module))
    del module
    ask = Ask(
        config=config,
        shape=shape,
        compute_bytes=compute.itemsize,
        reduce_bytes=torch_dtype(config.train.precision.reduce).itemsize,
        workers=workers,
        accumulation=cut.accumulation,
        activations={kept: _trace(config, task, cut.micro, kept, compute) for kept in CHECKPOINTING},
    )
    found, reason, advice = recommend(rows(ask), device_bytes)
    return Plan(
        name=name,
        parameters=shape.num_parameters,
        trained=shape.num_trained,
        workers=workers,
        micro=cut.micro,
        accumulation=cut.accumulation,
        seq_len=None if isinstance(config.data, TaskData) else config.data.seq_len,
        precision=config.train.precision.params,
        device=device,
        device_bytes=device_bytes,
        rows=found,
        largest_micro=_largest_micro(config, task, ask, found, device_bytes),
        reason=reason,
        advice=advice,
        sources={
            "parameters": "formula",
            "gradients": "formula",
            "optimizer_state": "formula",
            "communication": "formula",
            "sent": "formula",
            "activations": "trace",
        },
    )


def _trace(config: TrainingConfig, task: Task, micro: int, kept: str, compute: torch.dtype) -> Activations:
    engine = config.engine.model_copy(update={"activation_checkpointing": kept})
    return trace(task, _sample_batch(config, task, micro), engine, compute=compute)


def _sample_batch(config: TrainingConfig, task: Task, micro: int) -> Mapping[str, torch.Tensor]:
    """Return a batch of the right shapes; of token data its values are zeros, and nothing is read."""
    if isinstance(config.data, TaskData):
        with TemporaryDirectory() as cache:
            return task.dataset(Path(cache)).batch(range(micro))
    tokens = torch.zeros(micro, config.data.seq_len, dtype=torch.long)
    batch = {"tokens": tokens, "labels": tokens}
    is_within = getattr(config.data, "attention", "across") == "within"  # of a mixture each source says it
    return batch | ({"documents": tokens} if is_within else {})


def _largest_micro(
    config: TrainingConfig, task: Task, ask: Ask, found: tuple[object, ...], device_bytes: int | None
) -> int | None:
    """Solve for the micro-batch: activations grow by the same bytes with each sequence (two traces say how many)."""
    if device_bytes is None:
        return None
    asked = next(row for row in rows(ask) if row.is_asked)
    kept, compute = config.engine.activation_checkpointing, torch_dtype(config.train.precision.params)
    one, two = (_trace(config, task, micro, kept, compute).peak for micro in (1, 2))
    rest = asked.peak - asked.activations
    limit = max(1, config.train.batch.global_sequences // ask.workers)
    return largest_micro(
        lambda micro: rest + one + (two - one) * (micro - 1), int(device_bytes * HEADROOM), limit=limit
    )
