"""One HTTP connection to the service: a call, its answer as a value, and one tree of errors.

Knows httpx and the shape of a refusal; what calls there are is `orchestrator.client`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from orchestrator.api.views import ErrorView, ProblemView
from orchestrator.errors import OrchestratorError

Parsed = TypeVar("Parsed")


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


class Wire:
    """A connection to `url` (`http://host:port`, or a path below it) that carries the token with each call."""

    def __init__(
        self, url: str, token: str | None, *, timeout_seconds: float, transport: httpx.BaseTransport | None
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # trust_env=False: a proxy variable must never carry the token, or hide a loopback service.
        self._http = httpx.Client(base_url=self.url, headers=headers, transport=transport, trust_env=False)

    def close(self) -> None:
        """Give the connection back."""
        self._http.close()

    def get(
        self,
        path: str,
        parse: Callable[[bytes], Parsed],
        *,
        params: Mapping[str, Any] | None = None,
        extra_seconds: float = 0.0,
    ) -> Parsed:
        """Ask, and parse the answer; parameters that are None are left out. Raises ClientError."""
        kept = {key: value for key, value in (params or {}).items() if value is not None}
        request = self._http.build_request(
            "GET", path, params=kept, timeout=self._timeout_seconds + extra_seconds
        )
        return self._answer(request, parse)

    def post(
        self,
        path: str,
        parse: Callable[[bytes], Parsed],
        *,
        body: BaseModel,
        headers: Mapping[str, str] | None = None,
    ) -> Parsed:
        """Send a body, and parse the answer. Raises ClientError."""
        request = self._http.build_request(
            "POST",
            path,
            content=body.model_dump_json(),
            headers={"Content-Type": "application/json", **(headers or {})},
            timeout=self._timeout_seconds,
        )
        return self._answer(request, parse)

    def _answer(self, request: httpx.Request, parse: Callable[[bytes], Parsed]) -> Parsed:
        try:
            response = self._http.send(request)
        except httpx.HTTPError as error:
            raise UnreachableError(f"no answer from {self.url}: {error or type(error).__name__}") from error
        if not response.is_success:
            raise _error_of(response)
        try:
            return parse(response.content)
        except ValidationError as error:
            raise UnreachableError(f"{request.url} answered something else than shardyard does") from error


def _error_of(response: httpx.Response) -> ClientError:
    try:
        told = ErrorView.from_json(response.content)
    except ValidationError:
        told = ErrorView(title=response.reason_phrase or "error", status=response.status_code)
    text = told.detail or f"{response.url} answered {response.status_code} {told.title}"
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
            return ServiceError(text)
