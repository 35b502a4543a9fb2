"""The product as a person uses it: the commands, run as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from live_yard import REPOSITORY, LiveYard, llama, wait_until

from orchestrator.local_cluster import read_cluster
from orchestrator.processes import is_running

pytestmark = pytest.mark.system
SHARDYARD = Path(sys.executable).with_name("shardyard")
EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {
    "status", "attempts", "rounds", "kills", "resumed_from_step", "lost_steps", "final_step", "loss_first", "loss_last",
    "samples_repeated", "samples_missing", "recovery_seconds", "tokens_per_second", "memory_bytes", "checkpoints",
    "export_path",
}  # fmt: skip


def shardyard(
    *arguments: str, environ: dict[str, str] | None = None, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SHARDYARD), *arguments],
        env=environ or dict(os.environ),
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def processes_that_name(path: Path) -> list[psutil.Process]:
    """Live processes other than this one with `path` in their environment."""
    found = psutil.process_iter(["environ"])
    return [p for p in found if p.pid != os.getpid() and str(path) in json.dumps(p.info["environ"] or {})]


def test_the_demo_loses_a_rank_recovers_and_exports(tmp_path: Path):
    ran = shardyard("demo", "--json", environ={**os.environ, "TMPDIR": str(tmp_path)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert set(told) >= NEEDED
    assert (told["status"], told["kills"], told["rounds"], told["attempts"]) == ("succeeded", 1, 2, 1)
    assert (told["samples_repeated"], told["samples_missing"]) == (0, 0)
    assert told["loss_last"] < told["loss_first"] - 1.5  # it learns
    assert told["resumed_from_step"] > 0
    assert told["recovery_seconds"] > 0
    assert told["memory_bytes"]["optimizer_state"] > told["memory_bytes"]["parameters"] > 0
    assert (Path(told["export_path"]) / "model.safetensors").stat().st_size > 0
    assert processes_that_name(tmp_path) == []


def test_submit_follow_ends_with_the_jobs_result(clean_yard: LiveYard, tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text(llama("followed", steps=20))
    ran = shardyard("submit", str(file), "--set", "train.steps=12", "--follow", environ=clean_yard.environ)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "succeeded" in ran.stdout
    listed = json.loads(shardyard("ls", "--json", environ=clean_yard.environ).stdout)
    assert "followed" in json.dumps(listed)
    shown = shardyard("show", "followed", environ=clean_yard.environ)
    assert shown.returncode == 0
    assert "optimizer" in shown.stdout.lower()


def test_a_wrong_file_is_refused_before_anything_starts(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text(llama("wrong").replace("steps: 60", "stepps: 60"))
    ran = shardyard("validate", str(file))
    assert ran.returncode == 2
    assert ":6:" in ran.stderr
    assert "stepps" in ran.stderr
    assert "steps" in ran.stderr


def test_a_job_runs_without_an_orchestrator(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text(llama("alone", steps=12))
    ran = shardyard(
        "submit",
        str(file),
        "--local",
        "2",
        environ={**os.environ, "SHARDYARD_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_up_starts_what_died_anew_and_down_leaves_nothing(tmp_path: Path):
    environ = {**os.environ, "SHARDYARD_HOME": str(tmp_path / "home"), "SHARDYARD_PORT": "0"}
    up = shardyard("up", "--cpus", "3", "--json", environ=environ)
    assert up.returncode == 0, up.stderr
    assert shardyard("doctor", environ=environ).returncode == 0
    waits = tmp_path / "job.yaml"
    waits.write_text(llama("waits", workers=4))
    refused = shardyard("submit", str(waits), environ=environ)
    assert refused.returncode == 2
    assert "data.path" in refused.stderr, "its data are not allowed yet"

    ray = read_cluster(tmp_path / "home")
    assert ray is not None
    [gcs] = [p for p in psutil.Process(ray.ray.pid).children() if p.name() == "gcs_server"]
    gcs.kill()
    wait_until(lambda: not is_running(ray.ray), "Ray ends with its GCS")
    again = shardyard("up", "--allow", str(REPOSITORY), "--json", environ=environ)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["ray"] != json.loads(up.stdout)["ray"]
    looked = shardyard("doctor", environ=environ)
    assert looked.returncode == 0, looked.stdout
    assert "3 CPU" in looked.stdout, "what Ray may give out is remembered"
    assert shardyard("submit", str(waits), environ=environ).returncode == 0

    down = shardyard("down", environ=environ)
    assert down.returncode == 0, down.stderr
    assert "at the next `shardyard up`: waits" in down.stdout
    wait_until(lambda: not processes_that_name(tmp_path), "no process of it is left")


def test_metrics_of_a_live_job_follow_promtools_rules(clean_yard: LiveYard):
    job = clean_yard.submit(llama("scraped", steps=2_000))
    clean_yard.wait(job, lambda seen: seen.step > 10, "steps")
    text = clean_yard.metrics()
    assert f'shardyard_job_memory_bytes{{category="optimizer_state",job_id="{job.id}",rank="1"}}' in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with clean_yard.client as client:
        client.cancel(job.id)
    clean_yard.finish(job)
    assert job.id not in clean_yard.metrics()
