"""The use cases: what a person or a driver may ask of the control plane. Knows no HTTP and no Ray."""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from orchestrator import spec as job_file
from orchestrator.errors import NotAuthorizedError, SpecError
from orchestrator.forks import check_fork, choose_origin, hold_origin, let_go
from orchestrator.intake import answer, take_report, token_digest
from orchestrator.job import Job, JobState
from orchestrator.job_inputs import CancelRequested, PauseRequested, ResumeRequested, RetryRequested
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
from orchestrator.spec.model import JobSpec
from orchestrator.store import Store
from orchestrator.transition import transition
from workers.contract.events import Event, EventKind
from workers.contract.fork import split_reference
from workers.contract.launch import Origin
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
        resume_from: str | None = None,
    ) -> Submitted:
        """Queue a job; `resume_from`, `JOB` or `JOB@STEP`, makes it a fork of that checkpoint.

        Raises SpecError, IdempotencyConflictError; of a fork also JobNotFoundError, CheckpointNotFoundError,
        StorageUnavailableError.
        """
        placed = self._understand(text, overrides, source)
        digest = _digest(placed.spec, resume_from)
        # Asked first: a name that meant another job may mean the fork itself by now.
        known = self._store.known(idempotency_key, digest) if idempotency_key is not None else None
        if known is not None:
            return Submitted(job=known, created=False)
        origin = None
        if resume_from is not None:
            with _located(text, overrides, source):
                origin = self._origin(resume_from, placed.spec, source)
        job = _new_job(placed, now=self._now())
        if origin is not None:
            hold_origin(origin, job.id)
        stored, created = self._store.create(
            job, [_birth(job, origin)], key=idempotency_key, digest=digest, origin=origin
        )
        if created:
            self._notify()
        return Submitted(job=stored, created=created)

    def _origin(self, reference: str, spec: JobSpec, source: str) -> Origin:
        name, wanted = split_reference(reference)
        parent = self._store.find(name)
        checkpoint = choose_origin(parent, wanted)
        check_fork(parent, checkpoint, spec, where=source)
        return Origin(job_id=parent.id, run=parent.storage, checkpoint=checkpoint.name)

    def _understand(self, text: str, overrides: Sequence[str], source: str) -> Placed:
        spec = job_file.parse_spec(text, overrides=overrides, source=source)
        with _located(text, overrides, source):
            return place(spec, self._roots, source=source)

    def get(self, reference: str) -> Job:
        """Return the job."""
        return self._store.find(reference)

    def list_jobs(self, query: JobQuery) -> JobList:
        """One page of jobs, newest first."""
        return self._store.list_jobs(query)

    def cancel(self, reference: str, *, by: str = "", reason: str = "") -> Job:
        """Ask for the job's end and return at once; an ended job is returned as it is."""
        return self._wish(reference, CancelRequested(by=by, reason=reason))

    def pause(self, reference: str, *, by: str = "", reason: str = "") -> Job:
        """Ask that it saves and leaves the cluster for a while, and return at once."""
        return self._wish(reference, PauseRequested(by=by, reason=reason))

    def resume(self, reference: str, *, by: str = "", reason: str = "") -> Job:
        """Put a paused job back in the queue."""
        return self._wish(reference, ResumeRequested(by=by, reason=reason))

    def retry(self, reference: str, *, by: str = "", reason: str = "") -> Job:
        """Put a job that failed or was cancelled back in the queue, with its whole budget."""
        return self._wish(reference, RetryRequested(by=by, reason=reason))

    def _wish(
        self, reference: str, wish: CancelRequested | PauseRequested | ResumeRequested | RetryRequested
    ) -> Job:
        found = self._store.find(reference)
        with self._store.unit(found.id) as unit:
            job = unit.save(transition(unit.job, wish, now=self._now()))
        let_go(job, self._store.origin)
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


@contextmanager
def _located(text: str, overrides: Sequence[str], source: str) -> Iterator[None]:
    """Give the problems that are found in an understood file their lines in it."""
    try:
        yield
    except SpecError as error:
        raise job_file.locate(error.problems, text, overrides=overrides, source=source) from error


def _digest(spec: JobSpec, resume_from: str | None) -> str:
    """What a second submit with the same idempotency key must have in common with the first."""
    if resume_from is None:
        return spec.digest()
    return hashlib.sha256(f"{spec.digest()} from {resume_from}".encode()).hexdigest()


def _new_job(placed: Placed, *, now: datetime) -> Job:
    job_id = new_job_id()
    return Job(
        id=job_id,
        spec=placed.spec,
        run_dir=str(placed.storage_dir / job_id),
        reason="just submitted",
        created_at=now,
        updated_at=now,
        next_sequence=1,
    )


def _birth(job: Job, origin: Origin | None) -> Event:
    """The first line of a job's timeline."""
    message = f"submitted as {job.name}"
    data: dict[str, Any] = {"old": None, "new": JobState.QUEUED.value, "reason": ""}
    if origin is not None:
        message += f", a fork of {origin.job_id} at {origin.checkpoint}"
        data["origin"] = origin.model_dump()
    return Event(
        kind=EventKind.STATE, generation=0, sequence=0, at=job.created_at, message=message, data=data
    )


def new_job_id() -> str:
    """Make an id that no name can be mistaken for by accident: `j` and ten random characters (50 bits)."""
    return "j" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
