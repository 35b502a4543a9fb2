"""Stands for Ray where no address is configured: jobs are taken, and wait."""

from collections.abc import Sequence
from typing import NoReturn

from orchestrator.cluster import Capacity, RayJobStatus, RayUnavailable
from workers.contract.config import Runtime
from workers.contract.launch import LaunchRequest


class NoCluster:
    """A `RayBackend` that is never reachable: every method raises RayUnavailable with the remedy."""

    def capacity(self) -> Capacity:
        """Raise RayUnavailable."""
        self._refuse()

    def submit(self, request: LaunchRequest, *, report_token: str, runtime: Runtime) -> None:
        """Raise RayUnavailable."""
        self._refuse()

    def status(self, ray_job_id: str) -> RayJobStatus:
        """Raise RayUnavailable."""
        self._refuse()

    def stop(self, ray_job_id: str) -> None:
        """Raise RayUnavailable."""
        self._refuse()

    def leftovers(self, ray_job_id: str) -> Sequence[str]:
        """Raise RayUnavailable."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RayUnavailable("no Ray cluster is configured: set SHARDYARD_RAY_ADDRESS")
