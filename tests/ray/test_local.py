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


def start(config: dict[str, Any], tmp_path: Path) -> "subprocess.Popen[str]":
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
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
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
