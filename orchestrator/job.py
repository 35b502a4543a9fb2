"""A job as the control plane knows it. Values only; what changes them is `transition`."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from orchestrator.gang import Gang
from orchestrator.spec.model import JobSpec
from workers.contract.events import Event, JobResult
from workers.contract.failure import Verdict
from workers.contract.location import is_url, join
from workers.contract.report import Phase
from workers.contract.restart import Counters


class JobState(StrEnum):
    """Where a job stands. The last three are ends, though `retry` takes two of them back."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    DRAINING = "draining"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Nothing follows."""
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class GenerationState(StrEnum):
    """How far one driver's life is."""

    GRANTED = "granted"  # written down; Ray may not know it yet
    SUBMITTED = "submitted"  # Ray took it
    ENDED = "ended"  # nothing more is expected of it, but it may still hold resources
    RELEASED = "released"  # its Ray job is over and holds nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One grant: one driver, one Ray job."""

    number: int  # from 1
    gang: Gang
    state: GenerationState = GenerationState.GRANTED
    final_phase: Phase | None = None  # the driver's last word; None: it has not said one
    has_reported: bool = False
    acknowledged: int = -1  # highest event sequence number that is stored
    granted_at: datetime

    @property
    def is_awaited(self) -> bool:
        """More is expected of it."""
        return self.state in (GenerationState.GRANTED, GenerationState.SUBMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. `version` counts its changes: a writer names the version it read."""

    id: str
    number: int = 0  # order of submission, given by the store
    spec: JobSpec
    run_dir: str
    state: JobState = JobState.QUEUED
    reason: str = ""  # why it is in this state, or what it waits for
    desired: Literal["run", "pause", "cancel"] = "run"
    cancelled_by: str = ""
    awaits_grant: bool = True
    delay_seconds: float = 0.0  # before the next grant
    current: Generation | None = None  # the newest generation; None: never granted
    step: int = 0  # finished optimizer steps on the surviving lineage
    furthest_step: int = 0  # the most that was ever shown
    tokens: int = 0  # trained, replayed steps included; never falls
    counters: Counters = field(default_factory=Counters)
    verdict: Verdict | None = None  # of the newest failure
    result: JobResult | None = None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None  # first grant
    ended_at: datetime | None = None
    next_sequence: int = 0  # of the control plane's own events
    version: int = 0

    @property
    def name(self) -> str:
        """The name in the job file."""
        return self.spec.name

    @property
    def generation(self) -> int:
        """Number of the newest generation; 0: never granted."""
        return self.current.number if self.current else 0

    @property
    def world_size(self) -> int:
        """Ranks of the newest generation; 0: never granted."""
        return self.current.gang.workers if self.current else 0

    @property
    def storage(self) -> str:
        """Where its checkpoints lie: below the URL that the job file names, else in the run directory."""
        path = self.spec.checkpoint.storage_path
        return join(path, self.id) if is_url(path) else self.run_dir

    @property
    def holds_resources(self) -> bool:
        """A generation of it may have processes or reservations in the cluster."""
        return self.current is not None and self.current.state is not GenerationState.RELEASED

    def evolve(self, **changes: Any) -> "Job":
        """Return the job with `changes`."""
        return replace(self, **changes)

    def with_generation(self, **changes: Any) -> "Job":
        """Return the job with its newest generation changed."""
        assert self.current is not None
        return replace(self, current=replace(self.current, **changes))


def ray_job_id(job_id: str, generation: int) -> str:
    """The Ray submission id of a generation."""
    return f"{job_id}-{generation}"


Source = Literal["service", "driver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """A stored event. `position` counts up from 0 within the job, whoever wrote it: it is the cursor of readers."""

    position: int
    source: Source
    event: Event
