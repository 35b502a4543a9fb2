"""What the service is asked and what it answers, as values: pages and logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.job import Job, JobState, TimelineEvent
from workers.contract.events import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs, newest first; empty `states` means all. `before` is the `next_before` of the page ahead."""

    states: tuple[JobState, ...] = ()
    name: str | None = None
    limit: int = 100
    before: int | None = None  # a job's `number`: only older ones


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """One page. Jobs that come or end meanwhile neither repeat nor hide others."""

    jobs: tuple[Job, ...]
    next_before: int | None  # None: this is the last page


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The job of a submit, and whether this call made it (else its idempotency key did, earlier)."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Events after a position, oldest first."""

    events: tuple[TimelineEvent, ...]
    next_after: int
    is_complete: bool  # the job has ended, holds nothing, and these are its last events


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """One point of the loss curve of the surviving lineage."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The newest sample of each rank of the newest round, by rank, and the loss curve, thinned to a bound."""

    latest: tuple[Sample, ...]
    losses: tuple[LossPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogName:
    """Names one log: of a rank process, or of a generation's driver (then the other three are None)."""

    generation: int
    attempt: int | None = None
    round: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log file that exists."""

    name: LogName
    size_bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Text of [offset, next_offset) bytes; a character that the end cuts is left for the next part."""

    text: str
    offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A job file that would be accepted."""

    name: str
    spec: Mapping[str, Any]  # every default filled in
    digest: str
