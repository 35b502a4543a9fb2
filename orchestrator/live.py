"""A live job as metrics see it, gathered from the store: nothing is counted in a process, so nothing is lost with one."""

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.job import Job, JobState
from orchestrator.measure import of_newest_round
from orchestrator.metrics import CheckpointState, LiveJob
from orchestrator.store import Store
from workers.contract.events import Event, EventKind
from workers.contract.failure import FailureClass


def live_job(job: Job, store: Store) -> LiveJob:
    """Gather what a job exports; a handful of indexed reads."""
    waiting = LiveJob(
        job_id=job.id,
        name=job.name,
        engine=job.spec.engine.kind,
        zero_stage=job.spec.engine.stage,
        state=job.state.value,
        step=job.step,
        target_steps=job.spec.train.steps,
        world_size=0,
        tokens=job.tokens,
    )
    if job.generation == 0:  # it has told nothing yet, and there may be thousands like it
        return waiting
    is_running = job.state is JobState.RUNNING  # else its ranks are gone, or have not said anything yet
    restarts = store.count_events(job.id, EventKind.RESTART)
    return replace(
        waiting,
        world_size=job.world_size if is_running else 0,
        samples=of_newest_round(store.samples(job.id)) if is_running else (),
        restarts=_by_reason(restarts),
        checkpoint=_checkpoint(store.newest_event(job.id, EventKind.CHECKPOINT_PUBLISHED)),
        checkpoint_failures=sum(store.count_events(job.id, EventKind.CHECKPOINT_FAILED).values()),
        recovery_seconds=_recovery_seconds(store, job),
    )


def _by_reason(counted: Mapping[str | None, int]) -> Mapping[str, int]:
    return {reason or FailureClass.INTERNAL.value: count for reason, count in counted.items()}


def _checkpoint(published: Event | None) -> CheckpointState | None:
    if published is None or published.step is None:
        return None
    return CheckpointState(
        step=published.step,
        published_at=published.at,
        total_bytes=int(_number(published, "bytes") or 0),
        write_seconds=_number(published, "write_seconds"),
        stall_seconds=_number(published, "stall_seconds"),
    )


def _recovery_seconds(store: Store, job: Job) -> float | None:
    first_step = store.newest_event(job.id, EventKind.FIRST_STEP)
    return None if first_step is None else _number(first_step, "seconds_since_fault")


def _number(event: Event, key: str) -> float | None:
    value = event.data.get(key)
    return float(value) if isinstance(value, int | float) else None
