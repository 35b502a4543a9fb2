"""A whole service on a loopback port, with a Ray that only keeps books."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import uvicorn

from orchestrator.app import create_app
from orchestrator.client import Client
from orchestrator.cluster import Capacity, Node, RayJobState, RayJobStatus
from orchestrator.settings import Settings, read_settings
from workers.contract.config import Runtime
from workers.contract.launch import LaunchRequest

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

    submitted: dict[str, tuple[LaunchRequest, str]] = field(default_factory=dict)
    states: dict[str, RayJobState] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def capacity(self) -> Capacity:
        return Capacity(nodes=(Node(node_id="n1", address="127.0.0.2", cpus=4, is_head=True),))

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
class Yard:
    """The running service: typed calls through `client`, raw ones through `http` (the admin's token is set)."""

    url: str
    settings: Settings
    ray: BookKeepingRay
    client: Client
    http: httpx.Client


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
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A service of its own for one test."""
    with running_yard(tmp_path / "home", BookKeepingRay()) as running:
        yield running


@pytest.fixture
def start_yard(tmp_path: Path) -> Callable[[BookKeepingRay], "contextmanager[Yard]"]:
    """Start a service on one and the same state directory, again and again."""
    return lambda ray: running_yard(tmp_path / "home", ray)


@pytest.fixture
def job_file() -> str:
    """A job file that is accepted."""
    return JOB_FILE
