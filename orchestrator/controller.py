"""The one loop: observe, decide, apply. Idempotent and crash-safe at every line.

What is written decides; what Ray shows is compared with it; nothing is remembered between two ticks but since when
a condition holds, on a monotonic clock, so that a restart only waits longer.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event, Lock
from typing import Final

from orchestrator.admission import Ask, Grant, admit
from orchestrator.cluster import Capacity, RayBackend, RayUnavailable
from orchestrator.errors import StaleVersionError
from orchestrator.forks import let_go
from orchestrator.gang import Gang
from orchestrator.generation_keeper import GenerationKeeper
from orchestrator.job import Job
from orchestrator.job_inputs import Broken, Granted, Input, Waits
from orchestrator.patience import Patience
from orchestrator.policy import Policy
from orchestrator.store import Store
from orchestrator.transition import transition

__all__ = ["ClusterSight", "Controller", "Policy"]

logger = logging.getLogger(__name__)

ERROR_LIMIT: Final = (
    8  # unexpected errors in a row on one job, further and further apart, about four minutes in all
)
_ERROR_PAUSE_LIMIT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSight:
    """What the newest tick saw of Ray."""

    is_reachable: bool = False
    error: str = "not asked yet"
    seen_at: datetime | None = None  # of the newest answer
    capacity: Capacity = field(default_factory=Capacity)
    held_cpus: int = 0
    held_gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    """Unexpected errors of one job in a row, and when to try again."""

    count: int
    retry_at: float


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
        self._store = store
        self._backend = backend
        self._policy = policy
        self._now = now
        self._monotonic = monotonic
        self._patience = Patience(monotonic)
        self._keeper = GenerationKeeper(store, backend, policy=policy, now=now, patience=self._patience)
        self._wake = Event()
        self._lock = Lock()
        self._sight = ClusterSight()
        self._ticks = {"ok": 0, "ray_unavailable": 0, "error": 0}
        self._trouble: dict[str, _Trouble] = {}

    @property
    def sight(self) -> ClusterSight:
        """What the newest tick saw."""
        with self._lock:
            return self._sight

    @property
    def ticks(self) -> Mapping[str, int]:
        """Ticks by outcome: ok, ray_unavailable, error."""
        with self._lock:
            return dict(self._ticks)

    def wake(self) -> None:
        """Make `run` tick now."""
        self._wake.set()

    def run(self, stop: Event) -> None:
        """Tick until `stop` is set (call `wake` after setting it). Never raises."""
        while not stop.is_set():
            self._wake.clear()
            try:
                self.tick()
            except Exception:
                logger.exception("the tick failed; the next one tries again")
                self._count("error")
            self._wake.wait(self._policy.tick_seconds)

    def tick(self) -> None:
        """One round over every open job. Raises what the store raises."""
        capacity = self._look_at_cluster()
        jobs = self._store.open_jobs()
        self._patience.keep_only({job.id for job in jobs})
        self._trouble = {job.id: self._trouble[job.id] for job in jobs if job.id in self._trouble}
        if capacity is None:
            self._tell_waiting(jobs, f"waits for the cluster: {self.sight.error}")
            self._count("ray_unavailable")
            return
        for job in jobs:
            if job.holds_resources and not self._guarded(job, self._keeper.look_after):
                break
        self._admit(capacity)
        self._count("ok")

    def _look_at_cluster(self) -> Capacity | None:
        """Ask Ray what it has; None where it does not answer, which says nothing about any job."""
        try:
            capacity = self._backend.capacity()
        except RayUnavailable as error:
            if self._sight.is_reachable:
                logger.warning("Ray does not answer: %s", error)
            self._see(replace(self._sight, is_reachable=False, error=str(error)))
            return None
        if not self._sight.is_reachable:
            logger.info("Ray answers: %d nodes", len(capacity.nodes))
        self._see(replace(self._sight, is_reachable=True, error="", seen_at=self._now(), capacity=capacity))
        return capacity

    def _see(self, sight: ClusterSight) -> None:
        with self._lock:
            self._sight = sight

    def _count(self, outcome: str) -> None:
        with self._lock:
            self._ticks[outcome] += 1

    def _guarded(self, job: Job, step: Callable[[Job], None]) -> bool:
        """Work on one job so that its troubles stay its own; False where Ray has gone away in between."""
        trouble = self._trouble.get(job.id)
        if trouble is not None and self._monotonic() < trouble.retry_at:
            return True
        try:
            step(job)
        except RayUnavailable as error:
            logger.warning("job %s: %s", job.id, error)
            self._apply(job, Waits(reason=f"waits for Ray to take it: {error}"))
            return self._look_at_cluster() is not None  # this call may have failed for this job alone
        except StaleVersionError:
            return True  # somebody else was faster; the next tick sees what they did
        except Exception as error:  # noqa: BLE001 -- our own fault must not cost a healthy job, nor stop the others
            self._note_trouble(job, error)
            return True
        self._trouble.pop(job.id, None)
        return True

    def _note_trouble(self, job: Job, error: Exception) -> None:
        logger.exception("job %s: unexpected error", job.id)
        count = self._trouble[job.id].count + 1 if job.id in self._trouble else 1
        pause = min(2.0 ** min(count - 1, 10), _ERROR_PAUSE_LIMIT_SECONDS)
        self._trouble[job.id] = _Trouble(count=count, retry_at=self._monotonic() + pause)
        if count >= ERROR_LIMIT:
            let_go(self._apply(job, Broken(reason=f"{type(error).__name__}: {error}")), self._store.origin)

    def _admit(self, capacity: Capacity) -> None:
        """Give places to those who wait, and tell the others what they wait for."""
        jobs = self._store.open_jobs()
        held = [job.current.gang for job in jobs if job.current is not None and job.holds_resources]
        self._see(replace(self._sight, held_cpus=_cpus(held), held_gpus=_gpus(held)))
        waiting = {job.id: job for job in jobs if job.awaits_grant and not job.holds_resources}
        asks = [self._ask(job) for job in waiting.values()]
        for decision in admit(asks, capacity=capacity, held=held):
            job = waiting[decision.job_id]
            if isinstance(decision, Grant):
                granted = self._apply(job, Granted(gang=decision.gang))
                if granted.holds_resources:
                    self._guarded(granted, self._keeper.look_after)
            else:
                self._apply(job, Waits(reason=decision.reason))

    def _ask(self, job: Job) -> Ask:
        scaling = job.spec.scaling
        waited = self._patience.seconds_in(job.id, "delay", f"after generation {job.generation}")
        return Ask(
            job_id=job.id,
            widths=scaling.num_workers.widths(),
            cpus_per_worker=scaling.cpus_per_worker,
            gpus_per_worker=scaling.gpus_per_worker,
            delay_seconds=max(0.0, job.delay_seconds - waited),
        )

    def _tell_waiting(self, jobs: tuple[Job, ...], reason: str) -> None:
        for job in jobs:
            if job.awaits_grant:
                self._apply(job, Waits(reason=reason))

    def _apply(self, job: Job, happened: Input) -> Job:
        with self._store.unit(job.id) as unit:
            return unit.save(transition(unit.job, happened, now=self._now()))


def _cpus(gangs: list[Gang]) -> int:
    return sum(gang.workers * gang.cpus_per_worker for gang in gangs)


def _gpus(gangs: list[Gang]) -> int:
    return sum(gang.workers * gang.gpus_per_worker for gang in gangs)
