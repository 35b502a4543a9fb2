"""A whole service on a loopback port, with a Ray that only keeps books."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest
import uvicorn

from orchestrator.app import create_app
from orchestrator.client import Client
from orchestrator.cluster import Capacity, Node, RayJobState, RayJobStatus
from orchestrator.settings import Settings, read_settings
from workers.contract import rundir
from workers.contract.config import Runtime
from workers.contract.events import Event, EventKind, JobResult, Sample
from workers.contract.launch import LaunchRequest
from workers.contract.report import Desired, Phase, Report
from workers.contract.restart import Counters

TOKEN = "the-token-of-the-tests"

JOB_FILE = """\
name: nano
model: {kind: llama, size: nano}
data: {kind: text, path: python-stdlib, seq_len: 32}
train: {steps: 10, batch: {global_sequences: 4}}
scaling: {num_workers: 2}
"""


@dataclass(slots=True)
class BookKeepingRay:
    """Takes every submission, runs nothing, and lets a test play the driver."""

    num_cpus: int = 4
    submitted: dict[str, tuple[LaunchRequest, str]] = field(default_factory=dict)
    states: dict[str, RayJobState] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def capacity(self) -> Capacity:
        return Capacity(nodes=(Node(node_id="n1", address="127.0.0.2", cpus=self.num_cpus, is_head=True),))

    def submit(self, request: LaunchRequest, *, report_token: str, runtime: Runtime) -> None:
        with self.changed:
            name = f"{request.job_id}-{request.generation}"
            self.submitted.setdefault(name, (request, report_token))
            self.states.setdefault(name, RayJobState.RUNNING)
            self.changed.notify_all()

    def status(self, ray_job_id: str) -> RayJobStatus:
        return RayJobStatus(state=self.states.get(ray_job_id, RayJobState.MISSING))

    def stop(self, ray_job_id: str) -> None:
        if ray_job_id in self.states:
            self.states[ray_job_id] = RayJobState.STOPPED

    def leftovers(self, ray_job_id: str) -> list[str]:
        return []

    def launched(self, job_id: str) -> tuple[LaunchRequest, str]:
        """The first launch of a job and its report token, once the controller has submitted it."""
        name = f"{job_id}-1"
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.submitted, timeout=20), "never submitted"
            return self.submitted[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What a test says in the place of a generation's driver, over HTTP as a driver does."""

    http: httpx.Client
    ray: BookKeepingRay
    request: LaunchRequest
    token: str

    @property
    def job_id(self) -> str:
        return self.request.job_id

    def report(self, phase: Phase = "running", **changes: object) -> Report:
        told = Report(
            job_id=self.job_id,
            generation=self.request.generation,
            phase=phase,
            step=3,
            world_size=self.request.world_size,
            counters=Counters(),
        )
        return told.model_copy(update=changes)

    def post(self, told: Report, *, path: str | None = None, token: str | None = None) -> httpx.Response:
        return self.http.post(
            f"/api/v1/jobs/{path or told.job_id}/report",
            content=told.to_json(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {token or self.token}"},
        )

    def tell(self, phase: Phase = "running", **changes: object) -> Desired:
        answer = self.post(self.report(phase, **changes))
        assert answer.status_code == 200, answer.text
        return Desired.from_json(answer.content)

    def end(self) -> None:
        """End in order: Ray holds nothing of it any more."""
        self.ray.states[f"{self.job_id}-{self.request.generation}"] = RayJobState.SUCCEEDED

    def write_log(self, data: bytes, *, round_: int = 0, rank: int = 0) -> Path:
        path = rundir.rank_log(self.request.run_dir, generation=1, attempt=0, round_=round_, rank=rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """What a driver may have to tell. `at` is a moment that is written in another zone than UTC."""

    at: datetime = datetime(2026, 3, 8, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    def event(self, sequence: int, kind: EventKind = EventKind.NOTE) -> Event:
        return Event(kind=kind, generation=1, sequence=sequence, at=self.at, message=f"event {sequence}")

    def sample(self, rank: int, step: int = 3, *, loss: float = 2.5) -> Sample:
        return Sample(
            rank=rank,
            step=step,
            attempt=0,
            round=0,
            at=self.at,
            loss=loss,
            learning_rate=1e-3,
            grad_norm=0.5,
            tokens=384,
            steps=1,
            step_seconds=0.1,
            memory_bytes={"parameters": 1000},
        )

    def result(self) -> JobResult:
        return JobResult(
            final_step=10,
            loss_first=5.0,
            loss_last=2.0,
            tokens=1280,
            samples_repeated=0,
            samples_missing=0,
            replayed_steps=0,
            checkpoint="step-00000010.g1.a0.r0.00000000",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """The running service: typed calls through `client`, raw ones through `http` (the admin's token is set)."""

    url: str
    settings: Settings
    ray: BookKeepingRay
    client: Client
    http: httpx.Client

    def launch(self, job_file: str) -> Driver:
        """Submit a job and stand in for its driver once the controller has launched it."""
        request, token = self.ray.launched(self.client.submit(job_file).id)
        return Driver(http=self.http, ray=self.ray, request=request, token=token)


@contextmanager
def running_yard(home: Path, ray: BookKeepingRay) -> Iterator[Yard]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    settings = read_settings(
        {"SHARDYARD_HOME": str(home), "SHARDYARD_TOKEN": TOKEN, "SHARDYARD_PORT": str(port)}
    )
    server = uvicorn.Server(
        uvicorn.Config(create_app(settings, backend=ray), log_config=None, timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{port}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        with (
            Client(url, TOKEN) as client,
            httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as http,
        ):
            client.health()
            yield Yard(url=url, settings=settings, ray=ray, client=client, http=http)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listener.close()
    assert not thread.is_alive(), "the service did not end"


@pytest.fixture
def ray() -> BookKeepingRay:
    """A cluster of one node with four CPUs."""
    return BookKeepingRay()


@pytest.fixture
def yard(tmp_path: Path, ray: BookKeepingRay) -> Iterator[Yard]:
    """A service of its own for one test."""
    with running_yard(tmp_path / "home", ray) as running:
        yield running


@pytest.fixture(scope="module")
def shared_yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """One service for the tests of a file that leave no mark on each other; its cluster has room for all."""
    with running_yard(tmp_path_factory.mktemp("shared"), BookKeepingRay(num_cpus=1000)) as running:
        yield running


@pytest.fixture
def start_yard(tmp_path: Path) -> Callable[[BookKeepingRay], "contextmanager[Yard]"]:
    """Start a service on one and the same state directory, again and again."""
    return lambda ray: running_yard(tmp_path / "home", ray)


@pytest.fixture
def say() -> Say:
    """What a driver may have to tell."""
    return Say()


@pytest.fixture
def job_file() -> str:
    """A job file that is accepted."""
    return JOB_FILE
