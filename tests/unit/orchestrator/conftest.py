"""A real store on disk, jobs made by hand, a clock that tests move, and a Ray that only keeps books."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.cluster import Capacity, Node, RayJobState, RayJobStatus, RayUnavailable
from orchestrator.controller import Controller, Policy
from orchestrator.job import Job
from orchestrator.service import Roots, Service
from orchestrator.spec import parse_spec
from orchestrator.store import Store
from workers.contract.config import Runtime
from workers.contract.events import Event, EventKind, JobResult, Sample
from workers.contract.failure import FailureClass, Verdict
from workers.contract.launch import LaunchRequest
from workers.contract.report import Desired, Phase, Report

JOB_FILE = "model: {kind: llama}\ndata: {kind: text, path: python-stdlib}\n"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(slots=True)
class Clock:
    """Wall clock and monotonic clock; they move only when a test moves them, and apart if it wants."""

    wall: datetime = START
    seconds: float = 1000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds)


@dataclass
class BookKeepingRay:
    """Takes submissions and runs nothing; tests say what becomes of them. `fault` is raised by every call."""

    nodes: tuple[Node, ...] = (Node(node_id="n1", address="127.0.0.2", cpus=4, is_head=True),)
    submitted: dict[str, tuple[LaunchRequest, str]] = field(default_factory=dict)
    states: dict[str, RayJobStatus] = field(default_factory=dict)
    held: dict[str, list[str]] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    fault: Exception | None = None
    submit_fault: Exception | None = None
    before_status: Callable[[], None] = lambda: None
    calls: int = 0

    def _call(self) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault

    def capacity(self) -> Capacity:
        self._call()
        return Capacity(nodes=self.nodes)

    def submit(self, request: LaunchRequest, *, report_token: str, runtime: Runtime) -> None:
        self._call()
        if self.submit_fault is not None:
            raise self.submit_fault
        name = f"{request.job_id}-{request.generation}"
        assert name not in self.submitted, "one generation, one Ray job"
        self.submitted[name] = (request, report_token)
        self.states[name] = RayJobStatus(state=RayJobState.RUNNING)

    def status(self, ray_job_id: str) -> RayJobStatus:
        self._call()
        self.before_status()
        return self.states.get(ray_job_id, RayJobStatus(state=RayJobState.MISSING))

    def stop(self, ray_job_id: str) -> None:
        self._call()
        self.stops.append(ray_job_id)
        if ray_job_id in self.states:
            self.states[ray_job_id] = RayJobStatus(state=RayJobState.STOPPED)

    def leftovers(self, ray_job_id: str) -> list[str]:
        self._call()
        return list(self.held.get(ray_job_id, []))

    def end(self, ray_job_id: str, state: RayJobState = RayJobState.SUCCEEDED, message: str = "") -> None:
        self.states[ray_job_id] = RayJobStatus(state=state, message=message)


@dataclass(slots=True)
class Yard:
    """Service and controller on one store, with every edge in a test's hands."""

    store: Store
    root: Path
    clock: Clock = field(default_factory=Clock)
    ray: BookKeepingRay = field(default_factory=BookKeepingRay)
    service: Service = field(init=False)
    controller: Controller = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew as a restarted service does: with nothing but the store."""
        roots = Roots(storage=self.root)
        self.service = Service(self.store, roots=roots, now=self.clock.now)
        self.controller = Controller(
            self.store,
            self.ray,
            policy=Policy(report_url="http://127.0.0.1:1"),
            now=self.clock.now,
            monotonic=self.clock.monotonic,
        )

    def submit(self, *overrides: str, key: str | None = None) -> str:
        return self.service.submit(JOB_FILE, overrides=overrides, idempotency_key=key).job.id

    def running(self, *overrides: str) -> str:
        """Submit a job, let it start, and let its driver say that it runs."""
        job_id = self.submit(*overrides)
        self.controller.tick()
        self.report(job_id, "running", step=3)
        return job_id

    def report(
        self, job_id: str, phase: Phase, *, step: int = 0, generation: int | None = None, **more: object
    ) -> Desired:
        number = self.job(job_id).generation if generation is None else generation
        report = Report.model_validate(
            {
                "job_id": job_id,
                "generation": number,
                "phase": phase,
                "step": step,
                "world_size": 1,
                "counters": self.job(job_id).counters,
                **more,
            }
        )
        _, token = self.ray.submitted[f"{job_id}-{number}"]
        return self.service.report(job_id, report, token=token)

    def finish(self, job_id: str) -> Desired:
        return self.report(job_id, "finished", step=200, result=result())

    def job(self, job_id: str) -> Job:
        return self.store.job(job_id)

    def ticks(self, count: int, *, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.controller.tick()
            self.clock.pass_(seconds)

    def told(self, job_id: str) -> list[str]:
        """The timeline's state changes, as `old -> new`."""
        events = [one.event for one in self.service.events(job_id).events]
        return [f"{e.data['old']} -> {e.data['new']}" for e in events if e.kind is EventKind.STATE]


def result() -> JobResult:
    return JobResult(
        final_step=200,
        loss_first=5.0,
        loss_last=1.0,
        tokens=1000,
        samples_repeated=0,
        samples_missing=0,
        replayed_steps=0,
        checkpoint="step-00000200.g1.a0.r0.00000000",
    )


def verdict(failure_class: FailureClass = FailureClass.USER_CODE) -> Verdict:
    return Verdict(
        failure_class=failure_class, summary=f"{failure_class.value}: rank 1 on n1: ValueError: marker-123"
    )


def event(sequence: int, kind: EventKind = EventKind.NOTE, *, generation: int = 1, **more: object) -> Event:
    return Event.model_validate(
        {"kind": kind, "generation": generation, "sequence": sequence, "at": START, "message": "told", **more}
    )


def sample(step: int, *, rank: int = 0, round_: int = 0, steps: int = 1, loss: float = 2.0) -> Sample:
    return Sample(
        rank=rank,
        step=step,
        attempt=0,
        round=round_,
        at=START,
        loss=loss,
        learning_rate=1e-4,
        grad_norm=1.0,
        tokens=100 * steps,
        steps=steps,
        step_seconds=0.5,
    )


def new_job(*overrides: str, job_id: str = "j1", **changes: object) -> Job:
    job = Job(
        id=job_id,
        spec=parse_spec(JOB_FILE, overrides=overrides),
        run_dir=f"/runs/{job_id}",
        created_at=START,
        updated_at=START,
    )
    return job.evolve(**changes)


@dataclass(frozen=True, slots=True)
class Make:
    """How tests make values."""

    job = staticmethod(new_job)
    event = staticmethod(event)
    sample = staticmethod(sample)
    result = staticmethod(result)
    verdict = staticmethod(verdict)


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'yard.db'}"


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = Store.open(database)
    yield opened
    opened.close()


@pytest.fixture
def yard(store: Store, tmp_path: Path) -> Yard:
    root = tmp_path / "storage"
    root.mkdir()
    return Yard(store=store, root=root)


@pytest.fixture
def unavailable() -> RayUnavailable:
    return RayUnavailable("connection refused")
