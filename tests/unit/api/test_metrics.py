"""The exposition text: what live jobs export, and that it ends with them."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.metrics import CheckpointState, LiveJob, Snapshot, render
from workers.contract import metric_names
from workers.contract.events import Sample

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STATES = ("queued", "starting", "running", "recovering", "succeeded", "failed", "cancelled")

Key = tuple[str, frozenset[tuple[str, str]]]


def sample(rank: int, **changes: object) -> Sample:
    values: dict[str, object] = {
        "rank": rank,
        "step": 7,
        "attempt": 0,
        "round": 1,
        "at": NOW,
        "loss": 2.5,
        "learning_rate": 3e-4,
        "grad_norm": 0.5,
        "validation_loss": 2.25,
        "tokens": 8192,
        "steps": 1,
        "step_seconds": 0.25 + rank,
        "memory_bytes": {"parameters": 1000 + rank, "gradients": 500},
        "rss_bytes": 1 << 20,
    }
    return Sample.model_validate(values | changes)


def live(samples: Sequence[Sample] = (), **changes: object) -> LiveJob:
    job = LiveJob(
        job_id="j1",
        name="stdlib-llama",
        engine="fsdp",
        zero_stage=3,
        state="running",
        step=7,
        target_steps=200,
        world_size=2,
        samples=samples,
        tokens=57344,
        restarts={"rank_lost": 2},
        checkpoint=CheckpointState(
            step=5,
            published_at=NOW - timedelta(seconds=30),
            total_bytes=4096,
            write_seconds=0.5,
            stall_seconds=0.01,
        ),
        recovery_seconds=1.5,
    )
    return replace(job, **changes)


def snapshot(*jobs: LiveJob) -> Snapshot:
    return Snapshot(
        states=STATES,
        jobs_by_state={"running": len(jobs), "failed": 3},
        live=jobs,
        ticks={"ok": 4, "error": 1},
        is_cluster_reachable=True,
    )


def scrape(*jobs: LiveJob) -> dict[Key, float]:
    text = render(lambda: snapshot(*jobs), now=lambda: NOW).decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def series(family: str, /, **labels: str) -> Key:
    return family, frozenset(labels.items())


def test_a_running_job_exports_every_family_that_the_contract_names_and_no_other() -> None:
    exported = {name for name, _ in scrape(live([sample(0), sample(1)]))}
    assert exported == {metric.name for metric in metric_names.ALL}


def test_numbers_arrive_under_their_labels() -> None:
    values = scrape(live([sample(0), sample(1)]))
    assert values[series("shardyard_job_step", job_id="j1")] == 7
    assert values[series("shardyard_job_tokens_total", job_id="j1")] == 57344
    assert values[series("shardyard_job_restarts_total", job_id="j1", reason="rank_lost")] == 2
    assert values[series("shardyard_job_memory_bytes", job_id="j1", rank="1", category="parameters")] == 1001
    assert values[series("shardyard_checkpoint_age_seconds", job_id="j1")] == 30
    assert values[series("shardyard_jobs", state="failed")] == 3
    assert values[series("shardyard_jobs", state="cancelled")] == 0


@pytest.mark.parametrize("state", STATES[:4])
def test_exactly_one_state_of_a_live_job_is_one(state: str) -> None:
    values = scrape(live(state=state))
    on = [labels for (name, labels), value in values.items() if name == "shardyard_job_state" and value == 1]
    assert on == [frozenset({("job_id", "j1"), ("state", state)})]


def test_no_series_of_a_job_is_left_once_it_has_ended() -> None:
    assert not [key for key in scrape() if "job_id" in dict(key[1])]


def test_a_job_without_live_ranks_exports_no_rank_and_no_loss() -> None:
    names = {name for name, _ in scrape(live())}
    assert not names & {
        "shardyard_job_memory_bytes",
        "shardyard_job_step_duration_seconds",
        "shardyard_job_loss",
    }


def test_what_was_not_measured_is_left_out_rather_than_zero() -> None:
    names = {name for name, _ in scrape(live(checkpoint=None, recovery_seconds=None))}
    assert not names & {"shardyard_checkpoint_age_seconds", "shardyard_job_recovery_seconds"}


def test_a_wide_job_exports_bounds_and_mean_instead_of_every_rank() -> None:
    values = scrape(live([sample(rank, memory_bytes={"parameters": rank}) for rank in range(65)]))
    ranks = {
        dict(labels)["rank"]: value
        for (name, labels), value in values.items()
        if name.endswith("_memory_bytes") and "category" in dict(labels)
    }
    assert ranks == {"min": 0, "mean": 32, "max": 64}


def test_sixty_four_ranks_are_still_exported_one_by_one() -> None:
    values = scrape(live([sample(rank) for rank in range(64)]))
    assert len([1 for name, _ in values if name == "shardyard_job_step_duration_seconds"]) == 64


def test_a_clock_that_runs_ahead_makes_no_negative_age() -> None:
    checkpoint = CheckpointState(step=1, published_at=NOW + timedelta(seconds=5), total_bytes=1)
    assert scrape(live(checkpoint=checkpoint))[series("shardyard_checkpoint_age_seconds", job_id="j1")] == 0


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "emoji 🚂", "ünïcode"])
def test_any_name_survives_the_exposition_text(name: str) -> None:
    values = scrape(live(name=name))
    assert series("shardyard_job_info", job_id="j1", name=name, engine="fsdp", zero_stage="3") in values


def test_a_loss_that_is_not_a_number_is_exported_as_such() -> None:
    value = scrape(live([sample(0, loss=float("nan"))]))[series("shardyard_job_loss", job_id="j1")]
    assert value != value


def test_no_label_carries_a_pid_an_attempt_or_a_path() -> None:
    allowed = {"job_id", "name", "engine", "zero_stage", "state", "rank", "category", "reason", "outcome"}
    assert {label for metric in metric_names.ALL for label in metric.labels} <= allowed


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in metric_names.ALL:
        assert re.fullmatch(r"shardyard_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (`make apt`)")
def test_promtool_finds_nothing_to_say() -> None:
    text = render(lambda: snapshot(live([sample(0), sample(1)])), now=lambda: NOW)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
