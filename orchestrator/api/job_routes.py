"""Jobs: submit, validate, list, look at, cancel."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import Field

from orchestrator.api import render
from orchestrator.api.answer import answer
from orchestrator.api.auth import AdminDep
from orchestrator.api.door import ServiceDep
from orchestrator.api.views import (
    API_PREFIX,
    IDEMPOTENCY_HEADER,
    PAGE_LIMIT,
    REFERENCE_PATTERN,
    JobPage,
    JobView,
    SubmitBody,
    ValidView,
    WishBody,
)
from orchestrator.job import JobState
from orchestrator.job_queries import JobQuery
from workers.contract.base import Strict

SUBMIT_LIMIT_BYTES: Final = 4 << 20  # a job file is at most 256 KiB; JSON escapes and overrides come on top
MAX_NUMBER: Final = 2**53  # what every JSON reader can hold

JobRef = Annotated[str, Path(pattern=REFERENCE_PATTERN)]

router = APIRouter(prefix=API_PREFIX, tags=["jobs"], dependencies=[AdminDep])


class JobsParams(Strict):
    """The query of a list. `cursor` is the `next_cursor` of the page before."""

    state: tuple[JobState, ...] = ()
    name: Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9_-]*$")] = ""
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 100
    cursor: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None


@router.post(
    "/jobs",
    status_code=201,
    response_model=JobView,
    max_body_size=SUBMIT_LIMIT_BYTES,
    responses={200: {"description": "The same job again: its idempotency key made it earlier"}},
)
def submit(
    body: SubmitBody,
    service: ServiceDep,
    key: Annotated[str | None, Header(alias=IDEMPOTENCY_HEADER, pattern=r"^[\x21-\x7e]{1,200}$")] = None,
) -> Response:
    """Queue a job."""
    submitted = service.submit(
        body.spec,
        overrides=body.overrides,
        source=body.source,
        idempotency_key=key,
        resume_from=body.resume_from,
    )
    where = {"Location": f"{API_PREFIX}/jobs/{submitted.job.id}"}
    status = 201 if submitted.created else 200
    return answer(render.job_view(submitted.job), status=status, headers=where)


@router.post("/validate", max_body_size=SUBMIT_LIMIT_BYTES)
def validate(body: SubmitBody, service: ServiceDep) -> ValidView:
    """Check a job file and submit nothing."""
    return render.valid_view(service.validate(body.spec, overrides=body.overrides, source=body.source))


@router.get("/schema")
def schema(service: ServiceDep) -> dict[str, Any]:
    """The JSON Schema of a job file."""
    return service.schema()


@router.get("/jobs", response_model=JobPage)
def list_jobs(params: Annotated[JobsParams, Query()], service: ServiceDep) -> Response:
    """One page of jobs, newest first; filters come before the cut."""
    query = JobQuery(states=params.state, name=params.name or None, limit=params.limit, before=params.cursor)
    return answer(render.job_page(service.list_jobs(query)))


@router.get("/jobs/{job}", response_model=JobView)
def get_job(job: JobRef, service: ServiceDep) -> Response:
    """One job by id, or the newest of that name."""
    return answer(render.job_view(service.get(job)))


@router.post("/jobs/{job}/cancel", response_model=JobView)
def cancel(job: JobRef, service: ServiceDep, body: WishBody | None = None) -> Response:
    """Ask for a job's end. It is `cancelled` once its processes and reservations are gone."""
    told = body or WishBody()
    return answer(render.job_view(service.cancel(job, by=told.by, reason=told.reason)))


@router.post("/jobs/{job}/pause", response_model=JobView)
def pause(job: JobRef, service: ServiceDep, body: WishBody | None = None) -> Response:
    """Ask that a job saves and leaves the cluster. It is `paused` once its processes and reservations are gone."""
    told = body or WishBody()
    return answer(render.job_view(service.pause(job, by=told.by, reason=told.reason)))


@router.post("/jobs/{job}/resume", response_model=JobView)
def resume(job: JobRef, service: ServiceDep, body: WishBody | None = None) -> Response:
    """Put a paused job back in the queue; it goes on from what it saved."""
    told = body or WishBody()
    return answer(render.job_view(service.resume(job, by=told.by, reason=told.reason)))


@router.post("/jobs/{job}/retry", response_model=JobView)
def retry(job: JobRef, service: ServiceDep, body: WishBody | None = None) -> Response:
    """Put a job that failed or was cancelled back in the queue, with its whole budget of failures."""
    told = body or WishBody()
    return answer(render.job_view(service.retry(job, by=told.by, reason=told.reason)))
