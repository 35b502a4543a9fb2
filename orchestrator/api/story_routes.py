"""What a job tells: its timeline, numbers, logs and checkpoints."""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from orchestrator.api import render
from orchestrator.api.answer import answer
from orchestrator.api.auth import AdminDep
from orchestrator.api.door import ServiceDep
from orchestrator.api.job_routes import MAX_NUMBER, JobRef
from orchestrator.api.views import (
    API_PREFIX,
    LOG_LIMIT_BYTES,
    PAGE_LIMIT,
    WAIT_LIMIT_SECONDS,
    CheckpointView,
    EventPage,
    LogChunk,
    LogView,
    SamplesView,
)
from orchestrator.job_queries import LogName
from workers.contract.base import Strict

LOOK_SECONDS: Final = 0.2  # between two looks at the store while a request waits for news

Count = Annotated[int, Path(ge=0, le=MAX_NUMBER)]  # numbers, so that no text of a caller becomes a file name

router = APIRouter(prefix=f"{API_PREFIX}/jobs/{{job}}", tags=["story"], dependencies=[AdminDep])


class EventsParams(Strict):
    """Which part of the timeline. `wait` seconds, at most, for the first event after `after`."""

    after: Annotated[int, Field(ge=0, le=MAX_NUMBER)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 500
    wait: Annotated[float, Field(ge=0, le=WAIT_LIMIT_SECONDS)] = 0.0


class LogParams(Strict):
    """Which bytes of a log; a negative offset counts from its end."""

    offset: Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)] = 0
    limit: Annotated[int, Field(ge=1, le=LOG_LIMIT_BYTES)] = LOG_LIMIT_BYTES


@router.get("/events", response_model=EventPage)
async def events(
    job: JobRef, params: Annotated[EventsParams, Query()], request: Request, service: ServiceDep
) -> Response:
    """Events after a cursor, oldest first; waits for the first one if asked to."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + params.wait
    while True:
        timeline = await run_in_threadpool(service.events, job, after=params.after, limit=params.limit)
        left = deadline - loop.time()
        if timeline.events or timeline.is_complete or left <= 0 or await request.is_disconnected():
            return answer(render.event_page(timeline))
        await asyncio.sleep(min(LOOK_SECONDS, left))


@router.get("/samples", response_model=SamplesView)
def samples(job: JobRef, service: ServiceDep) -> Response:
    """The newest sample of each rank, and the loss curve."""
    return answer(render.samples_view(service.measurements(job)))


@router.get("/checkpoints")
def checkpoints(job: JobRef, service: ServiceDep) -> list[CheckpointView]:
    """Published checkpoints, newest first."""
    return [render.checkpoint_view(one) for one in service.checkpoints(job)]


@router.get("/logs")
def logs(job: JobRef, service: ServiceDep) -> list[LogView]:
    """Every log there is, oldest round first."""
    return [render.log_view(one) for one in service.logs(job)]


@router.get("/logs/driver/{generation}")
def driver_log(
    job: JobRef, generation: Count, params: Annotated[LogParams, Query()], service: ServiceDep
) -> LogChunk:
    """A part of what a generation's driver said."""
    name = LogName(generation=generation)
    return render.log_chunk(service.read_log(job, name, offset=params.offset, limit_bytes=params.limit))


@router.get("/logs/{generation}/{attempt}/{round}/{rank}")
def rank_log(
    job: JobRef,
    generation: Count,
    attempt: Count,
    round_: Annotated[int, Path(alias="round", ge=0, le=MAX_NUMBER)],
    rank: Count,
    params: Annotated[LogParams, Query()],
    service: ServiceDep,
) -> LogChunk:
    """A part of what a rank process wrote."""
    name = LogName(generation=generation, attempt=attempt, round=round_, rank=rank)
    return render.log_chunk(service.read_log(job, name, offset=params.offset, limit_bytes=params.limit))
