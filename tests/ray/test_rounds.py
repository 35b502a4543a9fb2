"""A rank that dies costs a round: new processes on the same agents, and the same training as if nothing had happened."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ray_runs import Run, descendants_of_agent, is_alive, llama, misbehaving, wait_for

pytestmark = pytest.mark.ray


def result_of(run: Run) -> dict:
    assert run.finish() == 0, run.story()
    return run.events("finished")[0]["data"]


ENGINES = [
    {"kind": "fsdp"},
    {"kind": "deepspeed", "zero_stage": 2, "offload": {"optimizer": "cpu"}},
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["kind"])
def test_a_killed_run_ends_with_the_same_loss_and_every_sample_once(
    run: Run, tmp_path: Path, engine: dict[str, Any]
):
    """B009."""
    config = llama() | {"engine": engine}
    undisturbed = Run(tmp_path / "undisturbed", run.environment).start(config)
    run.start(config)
    run.wait_event("checkpoint_published", number=2)
    os.kill(run.rank_pids()[1], signal.SIGKILL)
    killed, whole = result_of(run), result_of(undisturbed)
    assert killed["loss_last"] == whole["loss_last"]  # bitwise
    assert killed["loss_first"] == whole["loss_first"]
    assert (killed["final_step"], killed["samples_repeated"], killed["samples_missing"]) == (60, 0, 0)

    first, second = run.events("round_started")
    published = run.events("checkpoint_published")[1]
    assert second["data"]["resume_from"] == published["data"]["checkpoint"]
    assert second["step"] == published["step"] == 20
    assert killed["replayed_steps"] == second["data"]["lost_steps"] >= 0
    assert len(run.events("attempt_started")) == 1
    assert first["data"]["pids"] != second["data"]["pids"]
    assert "signal 9" in run.events("round_failed")[0]["message"]
    assert "restart 1 of 5" in run.events("restart")[0]["message"]
    assert run.events("first_step")[1]["data"]["seconds_since_fault"] > 0
    assert [pid for agent in run.agent_pids().values() for pid in descendants_of_agent(agent)] == []


def test_five_kills_are_survived_and_every_log_is_kept(run: Run):
    run.start(misbehaving(steps=80, every_steps=5, seconds=0.02, max_failures=5))
    for number in range(1, 6):
        pids = run.rank_pids(number)
        run.wait_event("first_step", number=number)
        newest = f".r{number - 1}."

        def has_published(mark: str = newest) -> bool:
            return any(mark in e["data"]["checkpoint"] for e in run.events("checkpoint_published"))

        wait_for(has_published, "a checkpoint of this round")
        os.kill(pids[number % 2], signal.SIGKILL)
    assert result_of(run)["final_step"] == 80
    assert run.events("restart")[-1]["data"]["counters"]["charged"] == 5
    for number in range(6):
        pids = run.rank_pids(number + 1)
        for rank, pid in pids.items():
            log = run.log(round_=number, rank=rank)
            assert f"rank {rank} pid {pid} env value-from-the-spec place {rank} {rank} 2 2 call 0" in log


def test_an_exception_of_user_code_ends_the_job_with_its_traceback(run: Run):
    run.start(misbehaving(do="raises", rank=1))
    assert run.finish() == 0, run.story()
    failed = run.events("failed")[0]
    verdict = failed["data"]["verdict"]
    assert (verdict["failure_class"], verdict["first_rank"]) == ("user_code", 1)
    assert "marker-123" in failed["message"]
    assert "misbehave.py" in verdict["traceback"]
    assert "ValueError: marker-123" in run.log(round_=0, rank=1)
    assert run.events("restart") == []
    assert not any(is_alive(pid) for pid in run.rank_pids().values())


def test_a_damaged_checkpoint_is_named_and_the_next_older_one_is_used(run: Run):
    run.start(misbehaving(steps=400, every_steps=5, seconds=0.02))
    run.wait_event("checkpoint_published", number=3)
    assert run.driver is not None
    run.driver.send_signal(signal.SIGTERM)
    assert run.finish() == 0, run.story()
    checkpoints = sorted(
        p for p in (run.directory / "checkpoints").iterdir() if (p / "manifest.json").exists()
    )
    newest, older = checkpoints[-1], checkpoints[-2]
    shard = next(newest.glob("rank-*.bin"))
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)

    run.start(misbehaving(steps=int(newest.name[5:13]) + 5, every_steps=5))
    assert run.finish() == 0, run.story()
    damaged = run.events("checkpoint_damaged")
    assert {event["data"]["checkpoint"] for event in damaged} == {newest.name}
    assert [e["data"]["resume_from"] for e in run.events("round_started")] == [newest.name, older.name]
    assert (
        json.loads((older / "manifest.json").read_text())["resume"]["step"]
        == run.events("round_started")[1]["step"]
    )
    assert run.events("restart")[0]["data"]["charged"] is False
    assert run.events("finished")


def test_sigterm_to_one_rank_moves_all_of_them_and_repeats_no_step(run: Run):
    """B125, B126: a notice is no failure; the new attempt goes on where all ranks left."""
    run.start(misbehaving(steps=150, every_steps=1000, seconds=0.02, max_failures=0))
    pids = run.rank_pids()
    run.wait_event("first_step")
    wait_for(lambda: "call 20" in run.log(round_=0, rank=1), "twenty steps")
    os.kill(pids[1], signal.SIGTERM)
    result = result_of(run)
    assert (result["final_step"], result["replayed_steps"]) == (150, 0)
    assert (result["samples_repeated"], result["samples_missing"]) == (0, 0)
    [left] = run.events("drained")
    assert left["data"]["seconds"] < 20
    assert run.events("round_started")[1]["data"]["resume_from"] == left["data"]["checkpoint"]
    assert "rank 1 on 127.0.0.2 was told to leave (SIGTERM)" in run.events("attempt_failed")[0]["message"]
    assert run.events("restart")[0]["data"]["charged"] is False
