"""The service over HTTP, as the CLI sees it: typed calls, one exception tree.

Knows the API's views; never Ray, FastAPI or the database. Not safe to share between threads.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx
from pydantic import TypeAdapter, ValidationError

from orchestrator.api.views import (
    API_PREFIX,
    IDEMPOTENCY_HEADER,
    LOG_LIMIT_BYTES,
    REFERENCE_PATTERN,
    WAIT_LIMIT_SECONDS,
    CheckpointView,
    ClusterView,
    EventPage,
    EventView,
    HealthView,
    JobPage,
    JobView,
    LogChunk,
    LogView,
    SamplesView,
    State,
    SubmitBody,
    ValidView,
    WishBody,
)
from orchestrator.wire import (
    ClientError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RejectedError,
    ServiceError,
    UnreachableError,
    Wire,
)

__all__ = [
    "Client",
    "ClientError",
    "ConflictError",
    "ForbiddenError",
    "NotFoundError",
    "RejectedError",
    "ServiceError",
    "UnreachableError",
]

TIMEOUT_SECONDS: Final = 30.0

_JSON_OBJECT: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any])
_LOGS: Final[TypeAdapter[list[LogView]]] = TypeAdapter(list[LogView])
_CHECKPOINTS: Final[TypeAdapter[list[CheckpointView]]] = TypeAdapter(list[CheckpointView])


class Client:
    """One connection to the service at `url` (`http://host:port`). Use as a context manager, or `close()` it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._wire = Wire(url, token, timeout_seconds=timeout_seconds, transport=transport)

    @property
    def url(self) -> str:
        """Where the service answers."""
        return self._wire.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._wire.close()

    # ---- jobs

    def submit(
        self,
        spec: str,
        *,
        overrides: Sequence[str] = (),
        source: str = "job.yaml",
        idempotency_key: str | None = None,
        resume_from: str | None = None,
    ) -> JobView:
        """Submit the text of a job file; `source` is its name in messages, `resume_from` (`JOB@STEP`) makes it a fork.

        The same key and body give the same job again. Raises RejectedError (with problems) and ConflictError.
        """
        headers = {IDEMPOTENCY_HEADER: idempotency_key} if idempotency_key else {}
        try:
            body = SubmitBody(spec=spec, overrides=overrides, source=source, resume_from=resume_from)
        except ValidationError as error:
            raise RejectedError(f"{resume_from!r} is no JOB or JOB@STEP") from error
        return self._wire.post(API_PREFIX + "/jobs", JobView.from_json, body=body, headers=headers)

    def validate(self, spec: str, *, overrides: Sequence[str] = (), source: str = "job.yaml") -> ValidView:
        """Check a job file and submit nothing. Raises RejectedError with every problem found."""
        body = SubmitBody(spec=spec, overrides=overrides, source=source)
        return self._wire.post(API_PREFIX + "/validate", ValidView.from_json, body=body)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a job file."""
        return self._wire.get(API_PREFIX + "/schema", _JSON_OBJECT.validate_json)

    def jobs(
        self,
        *,
        states: Sequence[State] = (),
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """One page of jobs, newest first; no `states` means all."""
        params = {"state": list(states), "name": name, "limit": limit, "cursor": cursor}
        return self._wire.get(API_PREFIX + "/jobs", JobPage.from_json, params=params)

    def all_jobs(self, *, states: Sequence[State] = (), name: str | None = None) -> Iterator[JobView]:
        """Every job that matches, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.jobs(states=states, name=name, cursor=cursor)
            yield from page.jobs
            cursor = page.next_cursor
            if cursor is None:
                return

    def job(self, job: str) -> JobView:
        """One job by id, or the newest one of that name, with its whole spec. Raises NotFoundError."""
        return self._wire.get(f"{API_PREFIX}/jobs/{_segment(job)}", JobView.from_json)

    def cancel(self, job: str, *, reason: str = "", by: str = "") -> JobView:
        """Ask for the end of a job and return at once: it is `cancelled` only when its processes are gone.

        Of a job that has ended already, its true state is returned and nothing changes.
        """
        return self._wish(job, "cancel", reason=reason, by=by)

    def pause(self, job: str, *, reason: str = "", by: str = "") -> JobView:
        """Ask that a job saves and leaves the cluster, and return at once; it is `paused` when it has."""
        return self._wish(job, "pause", reason=reason, by=by)

    def resume(self, job: str, *, reason: str = "", by: str = "") -> JobView:
        """Put a paused job back in the queue."""
        return self._wish(job, "resume", reason=reason, by=by)

    def retry(self, job: str, *, reason: str = "", by: str = "") -> JobView:
        """Put a job that failed or was cancelled back in the queue, with its whole budget of failures."""
        return self._wish(job, "retry", reason=reason, by=by)

    def _wish(self, job: str, wish: str, *, reason: str, by: str) -> JobView:
        try:
            body = WishBody(reason=reason, by=by)
        except ValidationError as error:
            raise RejectedError("a reason has at most 500 characters, a name 100") from error
        return self._wire.post(f"{API_PREFIX}/jobs/{_segment(job)}/{wish}", JobView.from_json, body=body)

    def wait(
        self,
        job: str,
        *,
        until: Callable[[JobView], bool] | None = None,
        timeout_seconds: float | None = None,
    ) -> JobView:
        """Return the job once it has ended, or `until(job)` holds; as it is after `timeout_seconds` (None: never)."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        after = 0
        while True:
            view = self.job(job)
            if view.is_terminal or (until is not None and until(view)):
                return view
            left = WAIT_LIMIT_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return view
            after = self.events(view.id, after=after, wait_seconds=min(left, 2.0)).next_after

    # ---- what a job tells

    def events(self, job: str, *, after: int = 0, limit: int = 500, wait_seconds: float = 0.0) -> EventPage:
        """Events with a cursor above `after`, oldest first; waits up to `wait_seconds` for the first one."""
        wait = min(wait_seconds, WAIT_LIMIT_SECONDS)
        params = {"after": after, "limit": limit, "wait": wait}
        path = f"{API_PREFIX}/jobs/{_segment(job)}/events"
        return self._wire.get(path, EventPage.from_json, params=params, extra_seconds=wait)

    def follow_events(self, job: str, *, after: int = 0) -> Iterator[EventView]:
        """Yield events as they come and end with the job. Blocks in between, `WAIT_LIMIT_SECONDS` a request."""
        while True:
            page = self.events(job, after=after, wait_seconds=WAIT_LIMIT_SECONDS)
            yield from page.events
            after = page.next_after
            if page.is_complete:
                return

    def samples(self, job: str) -> SamplesView:
        """Return the newest sample of each rank, and the loss curve."""
        return self._wire.get(f"{API_PREFIX}/jobs/{_segment(job)}/samples", SamplesView.from_json)

    def logs(self, job: str) -> list[LogView]:
        """Every log file that the job has, drivers included, oldest round first."""
        return self._wire.get(f"{API_PREFIX}/jobs/{_segment(job)}/logs", _LOGS.validate_json)

    def read_log(
        self, job: str, log: LogView, *, offset: int = 0, limit_bytes: int = LOG_LIMIT_BYTES
    ) -> LogChunk:
        """Read a piece of a log; follow it by asking again from `next_offset`. A negative offset counts from the end."""
        where = (
            f"driver/{log.generation}"
            if log.rank is None
            else f"{log.generation}/{log.attempt}/{log.round}/{log.rank}"
        )
        params = {"offset": offset, "limit": limit_bytes}
        return self._wire.get(
            f"{API_PREFIX}/jobs/{_segment(job)}/logs/{where}", LogChunk.from_json, params=params
        )

    def checkpoints(self, job: str) -> list[CheckpointView]:
        """Published checkpoints, newest first."""
        path = f"{API_PREFIX}/jobs/{_segment(job)}/checkpoints"
        return self._wire.get(path, _CHECKPOINTS.validate_json)

    # ---- the service and its cluster

    def cluster(self) -> ClusterView:
        """Return what the controller last saw of Ray."""
        return self._wire.get(API_PREFIX + "/cluster", ClusterView.from_json)

    def health(self) -> HealthView:
        """Ask whether the service lives; needs no token."""
        return self._wire.get("/healthz", HealthView.from_json)


def _segment(job: str) -> str:
    """Refuse what is no id or name before it reaches a URL."""
    if re.fullmatch(REFERENCE_PATTERN, job) is None:
        raise NotFoundError(f"no job is named {job!r}")
    return job
