"""The use cases: what a person or a driver may ask of the control plane. Knows no HTTP and no Ray."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from orchestrator import spec as job_file
from orchestrator.errors import NotAuthorizedError, SpecError
from orchestrator.intake import answer, take_report, token_digest
from orchestrator.job import Job, JobState
from orchestrator.job_inputs import CancelRequested
from orchestrator.job_queries import (
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
from orchestrator.live import live_job
from orchestrator.measure import of_newest_round
from orchestrator.metrics import LiveJob
from orchestrator.roots import Placed, Roots, place
from orchestrator.run_dir.checkpoints import list_checkpoints
from orchestrator.run_dir.logs import list_logs, read_log
from orchestrator.store import Store
from orchestrator.transition import transition
from workers.contract.events import Event, EventKind
from workers.contract.report import Desired, Report
from workers.contract.stored import StoredCheckpoint

__all__ = ["Roots", "Service"]

_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # nothing that is read as something else
_ID_LENGTH: Final = 10


class Service:
    """Thread-safe: routes call it from many threads. Where a method takes a reference, it is a job's id or a name.

    A name means the newest job that has it. Every method that takes a reference raises JobNotFoundError.
    """

    def __init__(
        self,
        store: Store,
        *,
        roots: Roots,
        now: Callable[[], datetime],
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """`now` returns UTC; `notify` is called after each change that the controller should see at once."""
        self._store = store
        self._roots = roots
        self._now = now
        self._notify = notify

    def validate(self, text: str, *, overrides: Sequence[str] = (), source: str = "job.yaml") -> Validated:
        """Check a job file and submit nothing. Raises SpecError."""
        spec = self._understand(text, overrides, source).spec
        return Validated(name=spec.name, spec=spec.model_dump(mode="json"), digest=spec.digest())

    def submit(
        self,
        text: str,
        *,
        overrides: Sequence[str] = (),
        source: str = "job.yaml",
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Queue a job. Raises SpecError, IdempotencyConflictError."""
        placed = self._understand(text, overrides, source)
        now = self._now()
        job_id = new_job_id()
        job = Job(
            id=job_id,
            spec=placed.spec,
            run_dir=str(placed.storage_dir / job_id),
            reason="just submitted",
            created_at=now,
            updated_at=now,
            next_sequence=1,
        )
        born = Event(
            kind=EventKind.STATE,
            generation=0,
            sequence=0,
            at=now,
            message=f"submitted as {job.name}",
            data={"old": None, "new": JobState.QUEUED.value, "reason": ""},
        )
        stored, created = self._store.create(job, [born], key=idempotency_key, digest=placed.spec.digest())
        if created:
            self._notify()
        return Submitted(job=stored, created=created)

    def _understand(self, text: str, overrides: Sequence[str], source: str) -> Placed:
        spec = job_file.parse_spec(text, overrides=overrides, source=source)
        try:
            return place(spec, self._roots, source=source)
        except SpecError as error:
            raise job_file.locate(error.problems, text, overrides=overrides, source=source) from error

    def get(self, reference: str) -> Job:
        """Return the job."""
        return self._store.find(reference)

    def list_jobs(self, query: JobQuery) -> JobList:
        """One page of jobs, newest first."""
        return self._store.list_jobs(query)

    def cancel(self, reference: str, *, by: str = "", reason: str = "") -> Job:
        """Ask for the job's end and return at once; an ended job is returned as it is."""
        found = self._store.find(reference)
        with self._store.unit(found.id) as unit:
            change = transition(unit.job, CancelRequested(by=by, reason=reason), now=self._now())
            job = unit.save(change)
        self._notify()
        return job

    def events(self, reference: str, *, after: int = 0, limit: int = 500) -> Timeline:
        """Events with a position above `after` (positions begin at 1)."""
        # The job is read first: what it has told by then is complete, so an ended one can be said to be so.
        job = self._store.find(reference)
        found = self._store.events(job.id, after=after, limit=limit)
        has_ended = job.state.is_terminal and not job.holds_resources
        return Timeline(
            events=found,
            next_after=found[-1].position if found else after,
            is_complete=has_ended and len(found) < limit,
        )

    def measurements(self, reference: str) -> Measurements:
        """Newest samples and the loss curve."""
        job = self._store.find(reference)
        return Measurements(
            latest=of_newest_round(self._store.samples(job.id)), losses=self._store.losses(job.id)
        )

    def logs(self, reference: str) -> tuple[LogFile, ...]:
        """Every log file, oldest generation, attempt and round first, drivers before their ranks."""
        return list_logs(self._store.find(reference).run_dir)

    def read_log(
        self, reference: str, name: LogName, *, offset: int = 0, limit_bytes: int = 1 << 20
    ) -> LogPart:
        """Read a part of a log; a negative offset counts from the end. Raises FileNotServedError."""
        return read_log(self._store.find(reference).run_dir, name, offset=offset, limit_bytes=limit_bytes)

    def checkpoints(self, reference: str) -> tuple[StoredCheckpoint, ...]:
        """Published checkpoints, newest first. Raises StorageUnavailableError."""
        return list_checkpoints(self._store.find(reference).storage)

    def report(self, job_id: str, report: Report, *, token: str) -> Desired:
        """Take a driver's report and answer what it shall do. Raises NotAuthorizedError."""
        is_own = report.job_id == job_id and self._store.may_report(
            job_id, report.generation, token_digest(token)
        )
        if not is_own:
            raise NotAuthorizedError(
                f"this token may not report for generation {report.generation} of {job_id}"
            )
        job, acknowledged = take_report(self._store, job_id, report, now=self._now())
        if job.awaits_grant or job.state.is_terminal:
            self._notify()
        return answer(job, report.generation, acknowledged=acknowledged)

    def counts(self) -> Mapping[JobState, int]:
        """Jobs by state; every state is there."""
        return self._store.counts()

    def live_jobs(self) -> tuple[LiveJob, ...]:
        """What each job that has not ended exports as metrics."""
        return tuple(
            live_job(job, self._store) for job in self._store.open_jobs() if not job.state.is_terminal
        )

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a job file."""
        return job_file.schema()


def new_job_id() -> str:
    """Make an id that no name can be mistaken for by accident: `j` and ten random characters (50 bits)."""
    return "j" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
