"""A run on this machine without a service: its lines, its exit code, its export, and that nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_runs import descendants_of_agent, is_alive, llama, misbehaving, wait_for

pytestmark = pytest.mark.ray


def start(config: dict[str, Any], tmp_path: Path, **environment: str) -> "subprocess.Popen[str]":
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    command = [
        sys.executable,
        "-P",
        "-m",
        "workers.cli",
        "local",
        str(file),
        "--workers",
        "2",
        "--json-lines",
    ]
    command += ["--run-dir", str(tmp_path / "run")]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def test_a_run_finishes_and_its_export_writes(tmp_path: Path):
    process = start({**llama(steps=12), "export": "safetensors"}, tmp_path)
    lines = [json.loads(line) for line in process.communicate(timeout=150)[0].splitlines()]
    assert process.returncode == 0, lines
    assert lines[-1]["type"] == "outcome"
    outcome = lines[-1]["data"]
    assert (outcome["phase"], outcome["result"]["final_step"]) == ("finished", 12)
    exported = Path(outcome["result"]["export_path"])
    assert {path.name for path in exported.iterdir()} >= {"model.safetensors", "config.json"}
    written = subprocess.run(
        [sys.executable, "-P", "-m", "workers.cli", "generate", str(exported), "--num-tokens", "20"],
        capture_output=True,
        check=True,
    )
    assert written.stdout.startswith(b"def ")
    samples = [line["data"] for line in lines if line["type"] == "sample"]
    assert {sample["rank"] for sample in samples} == {0, 1}
    assert all(sample["memory_bytes"]["parameters"] > 0 for sample in samples)


def test_ctrl_c_stops_a_run_and_leaves_no_process(tmp_path: Path):
    process = start(misbehaving(steps=5000, seconds=0.05), tmp_path)
    assert process.stdout is not None
    pids: list[int] = []
    for line in process.stdout:
        event = json.loads(line)["data"]
        if event.get("kind") == "agents_ready":
            agents = event["data"]["agent_pids"].values()
            pids = [pid for agent in agents for pid in (agent, *descendants_of_agent(agent))]
        if event.get("kind") == "round_started":
            pids += event["data"]["pids"].values()
            break
    os.kill(process.pid, signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(timeout=60) == 3, rest
    assert json.loads(rest.splitlines()[-1])["data"]["phase"] == "stopped"
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "no process is left", 20)
    process.stdout.close()


def worker(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-P", "-m", "workers.cli", *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    ).stdout


def test_a_run_whose_checkpoints_lie_in_an_object_store_recovers_and_is_exported(
    tmp_path: Path, s3_environment: dict[str, str]
):
    url = f"s3://yard/{tmp_path.name.strip('_')}"
    config = {**llama(steps=40), "checkpoint": {"storage_path": url, "every_steps": 10, "keep": 2}}
    process = start(config, tmp_path, **s3_environment)
    assert process.stdout is not None
    events = []
    for line in process.stdout:
        message = json.loads(line)
        events.append(message["data"])
        if message["data"].get("kind") == "checkpoint_published" and message["data"]["step"] == 20:
            started = next(event for event in reversed(events) if event.get("kind") == "round_started")
            os.kill(int(started["data"]["pids"]["1"]), signal.SIGKILL)
    process.stdout.close()
    assert process.wait(timeout=60) == 0, events
    outcome = events[-1]
    assert outcome["result"]["final_step"] == 40
    assert (outcome["result"]["samples_repeated"], outcome["result"]["samples_missing"]) == (0, 0)
    resumed = [event["data"]["resume_from"] for event in events if event.get("kind") == "round_started"]
    assert len(resumed) == 2
    assert resumed[1].startswith(("step-00000020", "step-00000030"))
    storage = f"{url}/run"
    rows = [
        json.loads(line) for line in worker("checkpoints", storage, "--verify", **s3_environment).splitlines()
    ]
    assert [(row["step"], row["problem"]) for row in rows] == [(40, ""), (30, "")]
    told = json.loads(worker("export", storage, "--to", str(tmp_path / "out"), **s3_environment))
    assert told["step"] == 40
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 0
