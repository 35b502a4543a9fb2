"""Between rows and values. Pure."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from orchestrator.gang import Gang
from orchestrator.job import Generation, GenerationState, Job, JobState, Source, TimelineEvent
from orchestrator.spec.model import JobSpec
from workers.contract.base import Message
from workers.contract.events import Event, EventKind, JobResult
from workers.contract.failure import FailureClass, Verdict
from workers.contract.restart import Counters

_PLAIN = (
    "reason",
    "desired",
    "cancelled_by",
    "awaits_grant",
    "delay_seconds",
    "run_dir",
    "step",
    "furthest_step",
    "tokens",
    "created_at",
    "updated_at",
    "started_at",
    "ended_at",
    "next_sequence",
)


def job_row(job: Job) -> dict[str, Any]:
    """Every column of a job but its number, version and last position, which the store gives."""
    plain = {column: getattr(job, column) for column in _PLAIN}
    return plain | {
        "reason": job.reason.replace(
            "\0", "\ufffd"
        ),  # it may quote a program, and PostgreSQL's text knows no NUL
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "generation": job.generation,
        "spec": job.spec.model_dump_json(),
        "counters": job.counters.to_json(),
        "verdict": _json(job.verdict),
        "result": _json(job.result),
    }


def _json(message: Message | None) -> str | None:
    return None if message is None else message.to_json()


def job_of(row: Row[Any], generation: Row[Any] | None) -> Job:
    """Read a job and its newest generation."""
    columns: Mapping[str, Any] = dict(row._mapping)
    return Job(
        **{column: columns[column] for column in _PLAIN},
        id=columns["id"],
        number=columns["number"],
        version=columns["version"],
        state=JobState(columns["state"]),
        spec=JobSpec.model_validate_json(columns["spec"]),
        counters=Counters.from_json(columns["counters"]),
        verdict=None if columns["verdict"] is None else Verdict.from_json(columns["verdict"]),
        result=None if columns["result"] is None else JobResult.from_json(columns["result"]),
        current=None if generation is None else generation_of(generation),
    )


def generation_row(job_id: str, generation: Generation) -> dict[str, Any]:
    """Every column of a generation."""
    return {
        "job_id": job_id,
        "number": generation.number,
        "workers": generation.gang.workers,
        "cpus_per_worker": generation.gang.cpus_per_worker,
        "gpus_per_worker": generation.gang.gpus_per_worker,
        "state": generation.state.value,
        "final_phase": generation.final_phase,
        "has_reported": generation.has_reported,
        "acknowledged": generation.acknowledged,
        "granted_at": generation.granted_at,
    }


def generation_of(row: Row[Any]) -> Generation:
    """Read a generation."""
    return Generation(
        number=row.number,
        gang=Gang(
            workers=row.workers, cpus_per_worker=row.cpus_per_worker, gpus_per_worker=row.gpus_per_worker
        ),
        state=GenerationState(row.state),
        final_phase=row.final_phase,
        has_reported=row.has_reported,
        acknowledged=row.acknowledged,
        granted_at=row.granted_at,
    )


def event_row(job_id: str, position: int, source: Source, event: Event) -> dict[str, Any]:
    """Every column of an event."""
    return {
        "job_id": job_id,
        "position": position,
        "source": source,
        "generation": event.generation,
        "sequence": event.sequence,
        "kind": event.kind.value,
        "failure_class": restart_class(event),
        "body": event.to_json(),
    }


def restart_class(event: Event) -> str | None:
    """Return the failure class of a restart, for counting; None for every other event."""
    if event.kind is not EventKind.RESTART:
        return None
    told = event.data.get("reason")
    return told if told in set(FailureClass) else FailureClass.INTERNAL.value


def event_of(row: Row[Any]) -> TimelineEvent:
    """Read an event."""
    return TimelineEvent(position=row.position, source=row.source, event=Event.from_json(row.body))
