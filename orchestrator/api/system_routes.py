"""The service itself: health, cluster, metrics, and the door for drivers' reports."""

from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, HTTPException, Request, Response

from orchestrator import metrics
from orchestrator.api import render
from orchestrator.api.auth import AdminDep, ReportTokenDep
from orchestrator.api.door import DoorDep, ServiceDep, utc_now
from orchestrator.api.job_routes import JobRef
from orchestrator.api.views import API_PREFIX, ClusterView, HealthView, TargetGroup
from workers.contract.report import Desired, Report

REPORT_LIMIT_BYTES: Final = 16 << 20  # what a driver spooled while the service was away

open_router = APIRouter(tags=["health"])
router = APIRouter(tags=["system"], dependencies=[AdminDep])
report_router = APIRouter(prefix=API_PREFIX, tags=["drivers"])


@open_router.get("/healthz")
async def health(door: DoorDep) -> HealthView:
    """The service lives. The only path that needs no token."""
    return HealthView(version=door.version)


@router.get("/metrics", response_class=Response)
def exposition(door: DoorDep) -> Response:
    """Live job state for Prometheus."""
    return Response(metrics.render(door.snapshot, now=utc_now), media_type=metrics.CONTENT_TYPE)


@router.get(f"{API_PREFIX}/prometheus/sd")
async def service_discovery(door: DoorDep) -> list[TargetGroup]:
    """Where Prometheus scrapes, for its `http_sd_configs`."""
    url = urlsplit(door.advertise_url)
    return [TargetGroup(targets=[url.netloc], labels={"__scheme__": url.scheme})]


@router.get(f"{API_PREFIX}/openapi.json")
async def openapi(request: Request) -> dict[str, Any]:
    """This API's own description."""
    description = request.app.openapi()
    assert isinstance(description, dict)
    return description


@router.get(f"{API_PREFIX}/cluster")
def cluster(door: DoorDep) -> ClusterView:
    """What the controller last saw of Ray."""
    return render.cluster_view(door.sight())


@report_router.post("/jobs/{job}/report", max_body_size=REPORT_LIMIT_BYTES)
def report(job: JobRef, body: Report, token: ReportTokenDep, service: ServiceDep) -> Desired:
    """Take a driver's report and answer what it shall do. Wants the generation's own token."""
    if body.job_id != job:
        raise HTTPException(422, f"a report of job {body.job_id} was sent to job {job}")
    return service.report(job, body, token=token)
