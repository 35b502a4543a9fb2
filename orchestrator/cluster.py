"""What the control plane knows of a Ray cluster, and the one door to it. Values only: nothing here speaks to Ray."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from orchestrator.errors import OrchestratorError
from workers.contract.config import Runtime
from workers.contract.launch import LaunchRequest


class RayUnavailable(OrchestratorError):  # noqa: N818 -- a condition that passes, not a fault of the job
    """Ray did not answer, or answered that it cannot now. Never says anything about a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An alive node: what it has in all, not what is free."""

    node_id: str
    address: str
    cpus: int  # whole CPUs
    gpus: int = 0
    is_head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Every alive node of the cluster."""

    nodes: tuple[Node, ...] = ()

    @property
    def cpus(self) -> int:
        """CPUs of the cluster in all."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of the cluster in all."""
        return sum(node.gpus for node in self.nodes)


class RayJobState(StrEnum):
    """Ray's own words for a job, and MISSING where Ray does not know it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    MISSING = "MISSING"

    @property
    def is_over(self) -> bool:
        """No driver process of this job runs or will run."""
        return self not in (RayJobState.PENDING, RayJobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJobStatus:
    """What Ray says of one Ray job."""

    state: RayJobState
    message: str = ""


class RayBackend(Protocol):
    """The door to one Ray cluster. Every method raises RayUnavailable where Ray does not answer; each is safe to repeat."""

    def capacity(self) -> Capacity:
        """Every alive node."""
        ...

    def submit(self, request: LaunchRequest, *, report_token: str, runtime: Runtime) -> None:
        """Submit the Ray job `"{job_id}-{generation}"`; nothing happens where it exists already."""
        ...

    def status(self, ray_job_id: str) -> RayJobStatus:
        """What Ray says of the job; MISSING is an answer, not an error."""
        ...

    def stop(self, ray_job_id: str) -> None:
        """Ask Ray to end the job's driver (SIGTERM, then SIGKILL); nothing happens where it is over."""
        ...

    def leftovers(self, ray_job_id: str) -> Sequence[str]:
        """Live placement groups and actors of the job, each in words; empty once nothing is held."""
        ...
