"""Forks: a job that begins with a checkpoint of another one. Which checkpoint, what it may change, who keeps it meanwhile."""

import logging
from collections.abc import Callable
from typing import Any

from orchestrator.errors import CheckpointNotFoundError, Problem, SpecError, StorageUnavailableError
from orchestrator.job import Job
from orchestrator.run_dir.checkpoints import is_published, list_checkpoints
from orchestrator.run_dir.storage import RunStorage
from orchestrator.spec.model import JobSpec
from workers.contract.fork import refused
from workers.contract.launch import Origin
from workers.contract.stored import StoredCheckpoint

logger = logging.getLogger(__name__)


def choose_origin(source: Job, wanted: str | None) -> StoredCheckpoint:
    """Return the published checkpoint of `source` that is meant: a step, then the newest of it, a name, or the newest.

    Raises CheckpointNotFoundError, StorageUnavailableError.
    """
    found = list_checkpoints(source.storage)
    meant = [one for one in found if wanted in (None, str(one.step), one.name)]
    if meant:
        return meant[0]
    steps = ", ".join(str(one.step) for one in reversed(found))
    there = f"there are those of steps {steps}" if found else "there is none"
    raise CheckpointNotFoundError(
        f"job {source.name} ({source.id}) has no published checkpoint {wanted or ''}: {there}"
    )


def check_fork(source: Job, checkpoint: StoredCheckpoint, spec: JobSpec, *, where: str) -> None:
    """Refuse what a fork may not change, each key by name and with both values. Raises SpecError."""
    problems = [
        _problem(
            change.path,
            change.new,
            f"was {_shown(change.old)} in job {source.name}, and a fork keeps it",
            where,
        )
        for change in refused(source.spec.training(), spec.training())
    ]
    if spec.train.steps <= checkpoint.step:
        rule = f"is not above step {checkpoint.step}, with which the fork begins"
        problems.append(_problem("train.steps", spec.train.steps, rule, where))
    if problems:
        raise SpecError(problems)


def _problem(path: str, value: Any, rule: str, source: str) -> Problem:
    return Problem(source=source, line=None, column=None, path=path, value=_shown(value), rule=rule)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def hold_origin(origin: Origin, fork_id: str) -> None:
    """Keep the checkpoint for the fork. Raises CheckpointNotFoundError where retention was faster."""
    storage = RunStorage(origin.run)
    storage.hold(origin.checkpoint, origin.holder(fork_id))
    if not is_published(storage, origin.checkpoint):
        storage.release(origin.checkpoint, origin.holder(fork_id))
        raise CheckpointNotFoundError(
            f"checkpoint {origin.checkpoint} of job {origin.job_id} was deleted just now"
        )


def let_go(job: Job, origin_of: Callable[[str], Origin | None]) -> None:
    """Keep it no longer for a job that has ended and holds nothing; its driver may have let go long ago."""
    if not job.state.is_terminal or job.holds_resources:
        return
    origin = origin_of(job.id)
    if origin is None:
        return
    try:
        RunStorage(origin.run).release(origin.checkpoint, origin.holder(job.id))
    except StorageUnavailableError as error:
        logger.warning(
            "job %s: checkpoint %s stays held; `shardyard checkpoints` shows it: %s",
            job.id,
            origin.checkpoint,
            error,
        )
