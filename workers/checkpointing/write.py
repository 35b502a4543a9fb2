"""Writing one checkpoint and tidying up after it: what the saver's thread does. Never touches live tensors.

All ranks come to the same outcome: DCP tells each the failures of all, and a rank that vanished breaks the group.
"""

from dataclasses import dataclass, replace
from importlib.metadata import version

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as save_with_dcp

from workers.checkpointing import catalog
from workers.checkpointing.fence import check_fence
from workers.checkpointing.retention import retire
from workers.checkpointing.shards import ShardWriter
from workers.checkpointing.staging import StagedPlanner
from workers.contract.manifest import Manifest
from workers.errors import StorageError, WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The manifest is there. The rest is filled in on the coordinator."""

    bytes: int = 0
    deleted: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()  # leftovers of earlier rounds, removed before it was written
    trouble: str = ""  # tidying failed; the checkpoint stands


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPublished:
    """All ranks know that this save failed; training may go on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The ranks lost each other, or our own code failed: the round cannot go on."""

    error: BaseException


Outcome = Published | NotPublished | Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """One save, staged: everything the thread needs."""

    run_dir: str
    head: Manifest  # without tensors and files
    planner: StagedPlanner
    group: dist.ProcessGroup | None
    is_coordinator: bool
    keep: int
    keep_best: int = 0


def run(job: WriteJob) -> Outcome:
    """Write and publish, then tidy up on the coordinator. Collective over `group`; raises nothing."""
    try:
        swept = _sweep(job)
        _write(job)
    except CheckpointException as error:
        _withdraw(job)
        return NotPublished(reason=_reason(error))
    except StorageError as error:  # only where this process writes by itself
        _withdraw(job)
        return NotPublished(reason=str(error))
    except BaseException as error:  # noqa: BLE001 -- the thread's root: the main thread raises it again
        return Broken(error=error)
    return replace(_tidy(job), swept=swept) if job.is_coordinator else Published()


def software_versions() -> dict[str, str]:
    """Return what wrote a checkpoint, for whoever reads it years later."""
    return {name: version(name) for name in ("shardyard", "torch")}


def _write(job: WriteJob) -> None:
    writer = ShardWriter(
        catalog.checkpoint_storage(job.run_dir),
        job.head,
        may_publish=lambda: check_fence(job.run_dir, job.head.checkpoint.generation),
    )
    if job.group is not None:
        save_with_dcp({}, storage_writer=writer, planner=job.planner, process_group=job.group)
        return
    job.planner.set_up_planner({}, is_coordinator=True)  # DCP's own steps, without a process group
    writer.set_up_storage_writer(is_coordinator=True)
    plans, metadata = job.planner.create_global_plan([job.planner.create_local_plan()])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(job.planner.finish_plan(plan), job.planner).value()])


def _sweep(job: WriteJob) -> tuple[str, ...]:
    """Make room first: a full disk may be full of leftovers. What cannot be swept now is in nobody's way."""
    if not job.is_coordinator:
        return ()
    mine = job.head.checkpoint
    try:
        return tuple(
            catalog.sweep_unpublished(
                job.run_dir, generation=mine.generation, attempt=mine.attempt, round_=mine.round
            )
        )
    except StorageError:
        return ()


def _withdraw(job: WriteJob) -> None:
    """Remove what a failed save left; every rank has ended its part of it. The next round sweeps what stays."""
    if not job.is_coordinator:
        return
    try:
        catalog.delete(job.run_dir, str(job.head.checkpoint))
    except StorageError:
        return


def _tidy(job: WriteJob) -> Published:
    """Apply retention now that this save is durable."""
    mine = job.head.checkpoint
    deleted: list[str] = []
    total = 0
    try:
        found = catalog.survey(job.run_dir).published
        total = sum(m.total_bytes for m in found if m.checkpoint == mine)
        given_up = retire(job.run_dir, found, newest=mine, keep=job.keep, keep_best=job.keep_best)
        deleted.extend(given_up)  # what went before an error is in it
    except StorageError as error:
        return Published(bytes=total, deleted=tuple(deleted), trouble=str(error))
    return Published(bytes=total, deleted=tuple(deleted))


def _reason(error: CheckpointException) -> str:
    """Name the ranks that failed, those with the same message together."""
    ranks_by_message: dict[str, list[int]] = {}
    for rank, (cause, _) in sorted(error.failures.items()):
        message = str(cause) if isinstance(cause, WorkerError) else f"{type(cause).__name__}: {cause}"
        ranks_by_message.setdefault(message, []).append(rank)
    return "; ".join(
        f"rank {', '.join(map(str, ranks))}: {message}" for message, ranks in ranks_by_message.items()
    )
