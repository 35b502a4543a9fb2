"""The one loop: observe, decide, apply. Idempotent and crash-safe at every line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event

from orchestrator.cluster import Capacity, RayBackend
from orchestrator.store import Store
from workers.contract.launch import DEFAULT_LEASE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The controller's times, in seconds, and what it tells drivers."""

    report_url: str | None
    tick_seconds: float = 1.0
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    placement_seconds: float = 120.0
    stop_grace_seconds: float = (
        30.0  # a driver that was told to stop, or said its last word, may take this long
    )
    missing_grace_seconds: float = (
        5.0  # Ray says that it does not know a job it took: believed after this long
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSight:
    """What the newest tick saw of Ray."""

    is_reachable: bool = False
    error: str = "not asked yet"
    seen_at: datetime | None = None  # of the newest answer
    capacity: Capacity = field(default_factory=Capacity)
    held_cpus: int = 0
    held_gpus: int = 0


class Controller:
    """Owned by one thread that calls `run`; `sight`, `ticks` and `wake` may be used from any."""

    def __init__(
        self,
        store: Store,
        backend: RayBackend,
        *,
        policy: Policy,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        """`now` returns UTC, for the timeline only; every time-out runs on `monotonic`."""

    @property
    def sight(self) -> ClusterSight:
        """What the newest tick saw."""
        raise NotImplementedError

    @property
    def ticks(self) -> Mapping[str, int]:
        """Ticks by outcome: ok, ray_unavailable, error."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make `run` tick now."""
        raise NotImplementedError

    def run(self, stop: Event) -> None:
        """Tick until `stop` is set (call `wake` after setting it). Never raises."""
        raise NotImplementedError

    def tick(self) -> None:
        """One round over every open job."""
        raise NotImplementedError
