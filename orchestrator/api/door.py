"""What the routes stand on, put together by the composition root, and how they get at it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request

from orchestrator.controller import ClusterSight
from orchestrator.job import JobState
from orchestrator.metrics import Snapshot
from orchestrator.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The service, and what else an answer may need."""

    service: Service
    admin_token: str
    version: str
    advertise_url: str  # under which Prometheus and drivers call
    sight: Callable[[], ClusterSight]  # what the controller last saw of Ray
    ticks: Callable[[], Mapping[str, int]]  # its ticks by outcome

    def snapshot(self) -> Snapshot:
        """Look at everything that `/metrics` exports, now."""
        return Snapshot(
            states=tuple(JobState),
            jobs_by_state={state.value: count for state, count in self.service.counts().items()},
            live=self.service.live_jobs(),
            ticks=self.ticks(),
            is_cluster_reachable=self.sight().is_reachable,
        )


def utc_now() -> datetime:
    """The wall clock, for people; nothing is decided by it."""
    return datetime.now(UTC)


def _door(request: Request) -> Door:
    door = request.app.state.door
    assert isinstance(door, Door)
    return door


def _service(door: Annotated[Door, Depends(_door)]) -> Service:
    return door.service


DoorDep = Annotated[Door, Depends(_door)]
ServiceDep = Annotated[Service, Depends(_service)]
