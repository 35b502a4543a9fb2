"""The use cases: what a person or a driver may ask of the control plane. Knows no HTTP and no Ray."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.job import Job, JobState
from orchestrator.job_queries import (
    CheckpointFile,
    JobList,
    JobQuery,
    LogFile,
    LogName,
    LogPart,
    Measurements,
    Submitted,
    Timeline,
    Validated,
)
from orchestrator.metrics import LiveJob
from orchestrator.store import Store
from workers.contract.report import Desired, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where jobs may read and write. Relative paths of a job file lie under `storage`."""

    storage: Path
    allowed: tuple[Path, ...] = ()  # further roots for absolute paths


class Service:
    """Thread-safe: routes call it from many threads. Every method takes a job's id, or a name (its newest job)."""

    def __init__(
        self,
        store: Store,
        *,
        roots: Roots,
        now: Callable[[], datetime],
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """`now` returns UTC; `notify` is called after each change that the controller should see at once."""

    def validate(self, text: str, *, overrides: Sequence[str] = (), source: str = "job.yaml") -> Validated:
        """Check a job file and submit nothing. Raises SpecError."""
        raise NotImplementedError

    def submit(
        self,
        text: str,
        *,
        overrides: Sequence[str] = (),
        source: str = "job.yaml",
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Queue a job. Raises SpecError, IdempotencyConflictError."""
        raise NotImplementedError

    def get(self, reference: str) -> Job:
        """Return the job. Raises JobNotFoundError, as every method below."""
        raise NotImplementedError

    def list_jobs(self, query: JobQuery) -> JobList:
        """One page of jobs, newest first."""
        raise NotImplementedError

    def cancel(self, reference: str, *, by: str = "", reason: str = "") -> Job:
        """Ask for the job's end and return at once; an ended job is returned as it is."""
        raise NotImplementedError

    def events(self, reference: str, *, after: int = 0, limit: int = 500) -> Timeline:
        """Events with a position above `after` (positions begin at 1)."""
        raise NotImplementedError

    def measurements(self, reference: str) -> Measurements:
        """Newest samples and the loss curve."""
        raise NotImplementedError

    def logs(self, reference: str) -> tuple[LogFile, ...]:
        """Every log file, oldest generation, attempt and round first, drivers before their ranks."""
        raise NotImplementedError

    def read_log(
        self, reference: str, name: LogName, *, offset: int = 0, limit_bytes: int = 1 << 20
    ) -> LogPart:
        """Read a part of a log; a negative offset counts from the end. Raises FileNotServedError."""
        raise NotImplementedError

    def checkpoints(self, reference: str) -> tuple[CheckpointFile, ...]:
        """Published checkpoints, newest first."""
        raise NotImplementedError

    def report(self, job_id: str, report: Report, *, token: str) -> Desired:
        """Take a driver's report and answer what it shall do. Raises JobNotFoundError, NotAuthorizedError."""
        raise NotImplementedError

    def counts(self) -> Mapping[JobState, int]:
        """Jobs by state; every state is there."""
        raise NotImplementedError

    def live_jobs(self) -> tuple[LiveJob, ...]:
        """What each job that has not ended exports as metrics."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a job file."""
        raise NotImplementedError
