"""The service over HTTP, as the CLI sees it: typed calls, one exception tree.

Knows httpx and the API's views; never Ray, FastAPI or the database. Not safe to share between threads.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from orchestrator.api.views import (
    API_PREFIX,
    IDEMPOTENCY_HEADER,
    LOG_LIMIT_BYTES,
    WAIT_LIMIT_SECONDS,
    CancelBody,
    CheckpointView,
    ClusterView,
    ErrorView,
    EventPage,
    EventView,
    HealthView,
    JobPage,
    JobView,
    LogChunk,
    LogView,
    ProblemView,
    SamplesView,
    State,
    SubmitBody,
    ValidView,
)
from orchestrator.errors import OrchestratorError
from workers.contract.base import Message

Answer = TypeVar("Answer", bound=Message)
TIMEOUT_SECONDS: Final = 30.0


class ClientError(OrchestratorError):
    """Root of what a call may raise; its text is one sentence for a person."""


class UnreachableError(ClientError):
    """Nothing answered at the URL in time, or something that is not this service did."""


class ForbiddenError(ClientError):
    """The token is missing, wrong, or not enough for this call (401, 403)."""


class NotFoundError(ClientError):
    """No such job, log or page (404)."""


class ConflictError(ClientError):
    """The idempotency key was used for another body, or the job is not in a state for this call (409)."""


class RejectedError(ClientError):
    """The input is wrong (400, 413, 422). `problems` names each place; it may be empty."""

    def __init__(self, message: str, problems: Sequence[ProblemView] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ServiceError(ClientError):
    """The service failed (5xx)."""


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
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_seconds = timeout_seconds
        # trust_env=False: a proxy variable must never carry the token, or hide a loopback service.
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_seconds, transport=transport, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._http.close()

    # ---- jobs

    def submit(
        self,
        spec: str,
        *,
        overrides: Sequence[str] = (),
        source: str = "job.yaml",
        idempotency_key: str | None = None,
    ) -> JobView:
        """Submit the text of a job file; `source` is its name in messages.

        The same key and body give the same job again. Raises RejectedError (with problems) and ConflictError.
        """
        headers = {IDEMPOTENCY_HEADER: idempotency_key} if idempotency_key else {}
        body = SubmitBody(spec=spec, overrides=overrides, source=source)
        return self._post("/jobs", JobView, body=body, headers=headers)

    def validate(self, spec: str, *, overrides: Sequence[str] = (), source: str = "job.yaml") -> ValidView:
        """Check a job file and submit nothing. Raises RejectedError with every problem found."""
        body = SubmitBody(spec=spec, overrides=overrides, source=source)
        return self._post("/validate", ValidView, body=body)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a job file."""
        schema: dict[str, Any] = self._request("GET", f"{API_PREFIX}/schema").json()
        return schema

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
        return self._get("/jobs", JobPage, params=params)

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
        return self._get(f"/jobs/{_segment(job)}", JobView)

    def cancel(self, job: str, *, reason: str = "", by: str = "") -> JobView:
        """Ask for the end of a job and return at once: it is `cancelled` only when its processes are gone.

        Of a job that has ended already, its true state is returned and nothing changes.
        """
        return self._post(f"/jobs/{_segment(job)}/cancel", JobView, body=CancelBody(reason=reason, by=by))

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
        return self._get(
            f"/jobs/{_segment(job)}/events", EventPage, params=params, timeout=self._timeout_seconds + wait
        )

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
        return self._get(f"/jobs/{_segment(job)}/samples", SamplesView)

    def logs(self, job: str) -> list[LogView]:
        """Every log file that the job has, drivers included, oldest round first."""
        response = self._request("GET", f"{API_PREFIX}/jobs/{_segment(job)}/logs")
        return _parse(response, TypeAdapter(list[LogView]).validate_json)

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
        return self._get(f"/jobs/{_segment(job)}/logs/{where}", LogChunk, params=params)

    def checkpoints(self, job: str) -> list[CheckpointView]:
        """Published checkpoints, newest first."""
        response = self._request("GET", f"{API_PREFIX}/jobs/{_segment(job)}/checkpoints")
        return _parse(response, TypeAdapter(list[CheckpointView]).validate_json)

    # ---- the service and its cluster

    def cluster(self) -> ClusterView:
        """Return what the controller last saw of Ray."""
        return self._get("/cluster", ClusterView)

    def health(self) -> HealthView:
        """Ask whether the service lives; needs no token."""
        return _parse(self._request("GET", "/healthz"), HealthView.from_json)

    # ---- the wire

    def _get(
        self,
        path: str,
        model: type[Answer],
        *,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        response = self._request("GET", API_PREFIX + path, params=params, timeout=timeout)
        return _parse(response, model.from_json)

    def _post(
        self, path: str, model: type[Answer], *, body: BaseModel, headers: Mapping[str, str] | None = None
    ) -> Answer:
        sent = {"Content-Type": "application/json", **(headers or {})}
        response = self._request("POST", API_PREFIX + path, content=body.model_dump_json(), headers=sent)
        return _parse(response, model.from_json)

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        kept = {key: value for key, value in (params or {}).items() if value is not None}
        try:
            response = self._http.request(
                method,
                path,
                params=kept,
                content=content,
                headers=headers,
                timeout=self._timeout_seconds if timeout is None else timeout,
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"no answer from {self.url}: {error or type(error).__name__}") from error
        if not response.is_success:
            raise _error_of(response)
        return response


def _segment(job: str) -> str:
    """Refuse what is no id or name before it reaches a URL."""
    if (
        not job
        or not all(char.isascii() and (char.isalnum() or char in "-_.") for char in job)
        or ".." in job
    ):
        raise NotFoundError(f"no job is named {job!r}")
    return job


Parsed = TypeVar("Parsed")


def _parse(response: httpx.Response, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(response.content)
    except ValidationError as error:
        raise UnreachableError(f"{response.url} answered something else than shardyard does") from error


def _error_of(response: httpx.Response) -> ClientError:
    try:
        told = ErrorView.from_json(response.content)
    except ValidationError:
        told = ErrorView(title=response.reason_phrase or "error", status=response.status_code)
    text = f"{told.title}: {told.detail}" if told.detail else told.title
    match response.status_code:
        case 401 | 403:
            return ForbiddenError(text)
        case 404:
            return NotFoundError(text)
        case 409:
            return ConflictError(text)
        case 400 | 413 | 422:
            return RejectedError(text, told.problems)
        case _:
            return ServiceError(f"{response.status_code} {text}")
