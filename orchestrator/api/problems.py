"""Every answer that is not a success, as `application/problem+json`."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from orchestrator.api.render import problem_view
from orchestrator.api.views import ErrorView, ProblemView
from orchestrator.cluster import RayUnavailable
from orchestrator.errors import (
    CheckpointNotFoundError,
    FileNotServedError,
    IdempotencyConflictError,
    JobNotFoundError,
    NotAuthorizedError,
    OrchestratorError,
    SpecError,
    StorageUnavailableError,
    StoreError,
)
from orchestrator.working_dir import WorkingDirError

logger = logging.getLogger(__name__)

_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": "1"},
}


def problem(
    status: int,
    detail: str = "",
    problems: Sequence[ProblemView] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Render one refusal; its title is the status' own phrase."""
    body = ErrorView(title=HTTPStatus(status).phrase, status=status, detail=detail, problems=problems)
    return Response(
        body.to_json(), status_code=status, media_type="application/problem+json", headers=dict(headers or {})
    )


def install(app: FastAPI) -> None:
    """Register what turns each exception into its answer."""
    app.exception_handler(SpecError)(_spec)
    app.exception_handler(OrchestratorError)(_refused)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(Exception)(_unexpected)


async def _spec(request: Request, error: SpecError) -> Response:
    count = len(error.problems)
    detail = f"{count} problem{'s' if count > 1 else ''} in the job file"
    return problem(422, detail, [problem_view(one) for one in error.problems])


async def _refused(request: Request, error: OrchestratorError) -> Response:
    status = _status(error)
    detail = str(error)
    if isinstance(error, StoreError) or status == 500:  # names tables and values: not for the wire
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "the service could not do this now; its log says why"
    return problem(status, detail, headers=_HEADERS.get(status))


def _status(error: OrchestratorError) -> int:
    match error:
        case JobNotFoundError() | FileNotServedError() | CheckpointNotFoundError():
            return 404
        case IdempotencyConflictError():
            return 409
        case NotAuthorizedError():
            return 401
        case WorkingDirError():
            return 422
        case StoreError() | RayUnavailable() | StorageUnavailableError():
            return 503
        case _:
            return 500


async def _http(request: Request, error: HTTPException) -> Response:
    phrase = HTTPStatus(error.status_code).phrase
    detail = "" if error.detail == phrase else str(error.detail)
    return problem(error.status_code, detail, headers=error.headers)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    problems = [_field(one) for one in error.errors()]
    return problem(422, "; ".join(one.text for one in problems), problems)


def _field(error: Mapping[str, object]) -> ProblemView:
    location = error["loc"]
    assert isinstance(location, tuple)
    path = ".".join(str(part) for part in location)
    rule = str(error["msg"]).removeprefix("Value error, ")
    return ProblemView(text=f"{path}: {rule}", path=path, rule=rule)


async def _unexpected(request: Request, error: Exception) -> Response:
    # The server logs the traceback; what went wrong inside is nothing for whoever asked.
    return problem(500, "the service failed at this request; its log says why")
