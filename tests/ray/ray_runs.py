"""Runs on a local Ray: real drivers, agents and ranks, watched through their run directories."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.local_cluster import LocalCluster, ray_environment
from workers.contract.config import TrainingConfig
from workers.contract.launch import LAUNCH_ENV, LaunchRequest
from workers.contract.restart import Counters

USER_CODE = Path(__file__).parents[1] / "user_code"


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants_of_agent(agent_pid: int) -> list[int]:
    """Live processes that carry the mark of an agent: forkserver, warden, store, rank, and what ranks started."""
    wanted = f"SHARDYARD_AGENT={agent_pid}-".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and any(
                line.startswith(wanted) for line in (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if is_alive(pid)]


T = TypeVar("T")


def wait_for(claim: Callable[[], T], what: str, seconds: float = 90.0) -> T:
    """Wait until `claim()` is truthy and return it."""
    deadline = time.monotonic() + seconds
    while not (value := claim()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return value


class Run:
    """One run directory and its drivers."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.environment = dict(environment)
        self.generation = -1
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self, config: Mapping[str, Any], **request: Any) -> "Run":
        """Start the driver of the next generation, as a Ray job would be."""
        self.generation += 1
        training = TrainingConfig.model_validate(config)
        values = {
            "job_id": "job",
            "name": "job",
            "generation": self.generation,
            "world_size": training.scaling.num_workers.max,
            "gpus_per_worker": 0,
            "config": training,
            "run_dir": str(self.directory),
            "counters": Counters(),
            "version": version("shardyard"),
        }
        launch = LaunchRequest(**{**values, **request})
        with (self.directory.parent / f"driver-{self.generation}.txt").open("wb") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-P", "-m", "workers.cli", "drive"],
                env={**self.environment, LAUNCH_ENV: launch.to_json()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The timeline of the newest generation."""
        lines: list[str] = []
        for segment in sorted((self.directory / "events").glob(f"g{self.generation}-*.jsonl")):
            lines += segment.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if kind is None or event["kind"] == kind]

    def wait_event(self, kind: str, *, number: int = 1, seconds: float = 90.0) -> dict[str, Any]:
        """Wait for the `number`-th event of a kind."""

        def found() -> list[dict[str, Any]]:
            events = self.events(kind)
            if len(events) < number:
                assert self.driver is None or self.driver.poll() is None or self.events(kind), self.story()
            return events[number - 1 : number]

        return wait_for(found, f"{kind} no. {number}\n{self.story()}", seconds)[0]

    def story(self) -> str:
        """What happened so far, for a failing test."""
        log = self.directory.parent / f"driver-{self.generation}.txt"
        said = [f"{e['kind']}: {e['message']}" for e in self.events()]
        return "\n".join([*said, log.read_text()[-2000:] if log.exists() else ""])

    def finish(self, seconds: float = 120.0) -> int:
        """Wait for the driver's own end and return its exit code."""
        assert self.driver is not None
        try:
            return self.driver.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end\n{self.story()}") from None

    def rank_pids(self, number: int = 1) -> dict[int, int]:
        """Pids by rank of the `number`-th round that started."""
        return {
            int(r): pid for r, pid in self.wait_event("round_started", number=number)["data"]["pids"].items()
        }

    def agent_pids(self, number: int = 1) -> dict[int, int]:
        """Pids by rank of the agents of the `number`-th attempt that stood."""
        pids = self.wait_event("agents_ready", number=number)["data"]["agent_pids"]
        return {int(rank): pid for rank, pid in pids.items()}

    def log(self, *, round_: int, rank: int, attempt: int = 0) -> str:
        """What a rank printed."""
        path = self.directory / "logs" / f"g{self.generation}.a{attempt}" / f"r{round_}" / f"rank-{rank}.log"
        return path.read_bytes().decode(errors="replace")

    def end(self) -> None:
        """End the driver, if a test left it."""
        if self.driver is not None and self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait(timeout=30)


def llama(**train: Any) -> dict[str, Any]:
    """A real model on real text, small enough for seconds."""
    return {
        "model": {"kind": "llama", "size": "nano"},
        "data": {"kind": "text", "path": str(Path(__file__).parents[2] / "workers"), "seq_len": 64},
        "train": {
            "steps": 60,
            "batch": {"global_sequences": 4},
            "precision": {"params": "fp32"},
            **train,
        },
        "scaling": {"num_workers": 2},
        "checkpoint": {"every_steps": 10},
    }


def misbehaving(
    *, every_steps: int = 10, steps: int = 60, max_failures: int = 5, **args: Any
) -> dict[str, Any]:
    """The user's task of `user_code/misbehave.py`."""
    return {
        "model": {"kind": "task", "target": "misbehave:make", "args": args},
        "data": {"kind": "task"},
        "train": {"steps": steps, "batch": {"global_sequences": 4}, "precision": {"params": "fp32"}},
        "engine": {"kind": "ddp"},
        "scaling": {"num_workers": 2},
        "checkpoint": {"every_steps": every_steps},
        "failure": {"max_failures": max_failures},
        "runtime": {"working_dir": str(USER_CODE), "env": {"FROM_THE_SPEC": "value-from-the-spec"}},
    }


def driver_environment(cluster: LocalCluster) -> dict[str, str]:
    """What a driver on that cluster finds in its environment."""
    environment = ray_environment(os.environ, token_path=cluster.token_path)
    return {
        **environment,
        "RAY_ADDRESS": cluster.gcs_address,
        "RAY_TRAIN_V2_ENABLED": "1",
        "PYTHONSAFEPATH": "1",
    }
