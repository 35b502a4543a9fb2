"""A yard under test: brought up as the CLI does, spoken to over HTTP, its processes found and killed by pid."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from orchestrator.api.views import EventView, JobView
from orchestrator.cli.yard import Yard, bring_down, bring_up
from orchestrator.client import Client
from orchestrator.local_service import start_service
from orchestrator.processes import family
from workers.contract.events import EventKind

BOUND_SECONDS = 120.0  # generous: reached only by what will never happen
REPOSITORY = Path(__file__).parents[2]
USER_CODE = REPOSITORY / "tests" / "user_code"


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = BOUND_SECONDS) -> Any:
    """Return the first true answer of `condition`; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


class LiveYard:
    """Ray and the orchestrator in `home`."""

    def __init__(self, home: Path, *, environ: Mapping[str, str]) -> None:
        own = {name: value for name, value in environ.items() if not name.startswith("SHARDYARD_")}
        self.home = home
        self.environ = {
            **own,
            "SHARDYARD_HOME": str(home),
            "SHARDYARD_PORT": str(free_port()),  # the same after a restart
            "SHARDYARD_LEASE_SECONDS": "5",
            "SHARDYARD_ALLOWED_ROOTS": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        }
        self.yard: Yard | None = None

    def up(self) -> None:
        """Start Ray and the orchestrator."""
        self.yard = bring_up(
            self.home, environ=self.environ, num_cpus=4, num_gpus=None, with_ray=True, tell=lambda *_: None
        )

    def down(self) -> None:
        """End both."""
        bring_down(self.home)

    @property
    def client(self) -> Client:
        """A new connection to the orchestrator, wherever it listens now."""
        assert self.yard is not None
        token = (self.home / "token").read_text().strip()
        return Client(self.yard.service.url, token)

    def kill_service(self) -> None:
        """SIGKILL the orchestrator."""
        assert self.yard is not None
        for process in family(self.yard.service.service.mark):
            process.kill()
        wait_until(
            lambda: not family(self.yard.service.service.mark) if self.yard else True,
            "the orchestrator is gone",
        )

    def start_service(self) -> None:
        """Start the orchestrator again, on any port."""
        assert self.yard is not None
        service = start_service(self.home, environ=self.environ, cluster=self.yard.cluster)
        self.yard = Yard(home=self.home, cluster=self.yard.cluster, service=service)

    def submit(self, text: str, *overrides: str) -> JobView:
        """Submit a job file."""
        with self.client as client:
            return client.submit(text, overrides=overrides)

    def job(self, job: JobView) -> JobView:
        """The job as it stands."""
        with self.client as client:
            return client.job(job.id)

    def events(self, job: JobView, *kinds: EventKind) -> list[EventView]:
        """The job's timeline, or the events of some kinds."""
        with self.client as client:
            events = client.events(job.id, limit=1000).events
        return [event for event in events if not kinds or event.kind in kinds]

    def story(self, job: JobView) -> str:
        """The job's timeline as text, for the message of a failing test."""
        return "\n".join(f"{event.at:%X} {event.kind.value}: {event.message}" for event in self.events(job))

    def wait(
        self, job: JobView, condition: Callable[[JobView], Any], what: str, *, seconds: float = BOUND_SECONDS
    ) -> JobView:
        """Wait until `condition` holds for the job; fail at once when the job ends without it."""

        def look() -> JobView | None:
            seen = self.job(job)
            if condition(seen):
                return seen
            assert not seen.is_terminal, f"{job.name} ended {seen.state} ({seen.reason}) before {what}"
            return None

        return wait_until(look, f"{job.name}: {what}", seconds=seconds)

    def finish(self, job: JobView, *, seconds: float = BOUND_SECONDS) -> JobView:
        """Wait for the job's end."""
        return wait_until(
            lambda: (seen := self.job(job)).is_terminal and seen, f"{job.name} ends", seconds=seconds
        )

    def rank_pids(self, job: JobView) -> dict[int, int]:
        """Pids of the ranks of the newest round, by rank."""
        started = self.events(job, EventKind.ROUND_STARTED)[-1]
        return {int(rank): int(pid) for rank, pid in started.data["pids"].items()}

    def checkpoints_on_disk(self, job: JobView) -> set[str]:
        """Names of the published checkpoints, without asking anybody."""
        found = (self.home / "storage").glob(f"**/{job.id}/checkpoints/*/manifest.json")
        return {path.parent.name for path in found}

    def metrics(self) -> str:
        """One scrape."""
        assert self.yard is not None
        token = (self.home / "token").read_text().strip()
        answer = httpx.get(
            f"{self.yard.service.url}/metrics", headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )
        return answer.raise_for_status().text

    def processes_of(self, job: JobView) -> list[psutil.Process]:
        """Live processes of the cluster that carry the job's id in their environment: driver, agents, ranks, stores."""
        assert self.yard is not None
        assert self.yard.cluster is not None
        found = [p for p in family(self.yard.cluster.ray.mark) if job.id in _environment_of(p)]
        return [p for p in found if not _is_rays_own(p)]

    def kill_rank(self, job: JobView, rank: int) -> None:
        """SIGKILL a rank of the newest round."""
        os.kill(self.rank_pids(job)[rank], signal.SIGKILL)

    def end_all_jobs(self) -> None:
        """Cancel what is open and wait for it."""
        with self.client as client:
            open_jobs = [job for job in client.all_jobs() if not job.is_terminal]
            for job in open_jobs:
                client.cancel(job.id)
        for job in open_jobs:
            self.finish(job)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_rays_own(process: psutil.Process) -> bool:
    """Whether it serves more than the job: Ray Train's coordinator, made in the environment of the first job to train.

    Or the `sleep 1` of the shell with which Ray watches an entrypoint, which ends by itself within 1 s.
    """
    try:
        return (
            process.cmdline()[:2] == ["sleep", "1"] or "_AutoscalingCoordinatorActor" in process.cmdline()[0]
        )
    except (psutil.Error, IndexError):
        return True


def _environment_of(process: psutil.Process) -> str:
    """All that tells whose a process is; empty for one that is gone."""
    try:
        return "\n".join([*process.environ().values(), *process.cmdline()])
    except (psutil.Error, OSError):
        return ""


def llama(name: str, *, steps: int = 60, workers: object = 2, every_steps: int = 10) -> str:
    """A job file: a real model on real text, small enough for seconds."""
    text = REPOSITORY / "workers"
    return f"""
name: {name}
model: {{kind: llama, size: nano}}
data: {{kind: text, path: {text}, seq_len: 64}}
train:
  steps: {steps}
  batch: {{global_sequences: 4}}
  precision: {{params: fp32}}
scaling: {{num_workers: {workers}}}
checkpoint: {{every_steps: {every_steps}}}
"""


def user_task(
    name: str, *, steps: int = 60, workers: int = 2, every_steps: int = 10, **arguments: object
) -> str:
    """A job file of the user's own code, with a way to misbehave."""
    return f"""
name: {name}
model: {{kind: task, target: "misbehave:make", args: {json.dumps(arguments)}}}
data: {{kind: task}}
train: {{steps: {steps}, batch: {{global_sequences: 4}}, precision: {{params: fp32}}}}
engine: {{kind: ddp}}
scaling: {{num_workers: {workers}}}
checkpoint: {{every_steps: {every_steps}}}
runtime: {{working_dir: {USER_CODE}, env: {{FROM_THE_SPEC: value-from-the-spec}}}}
"""
