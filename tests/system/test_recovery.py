"""Whatever is killed in mid-run, the job ends `succeeded`, once, as if nothing had happened."""

import os
import signal

import pytest
from live_yard import LiveYard, llama, wait_until

from workers.contract.events import EventKind

pytestmark = pytest.mark.system


def test_a_killed_rank_costs_a_round_and_changes_nothing_of_the_training(clean_yard: LiveYard):
    undisturbed = clean_yard.submit(llama("undisturbed"))
    killed = clean_yard.submit(llama("killed"))
    clean_yard.wait(killed, lambda job: job.step >= 20, "step 20")
    clean_yard.kill_rank(killed, 1)
    after, plain = clean_yard.finish(killed), clean_yard.finish(undisturbed)
    assert (after.state, plain.state) == ("succeeded", "succeeded"), (after.reason, plain.reason)
    assert after.result is not None
    assert plain.result is not None
    assert after.result.loss_last == plain.result.loss_last  # bitwise
    for result in (after.result, plain.result):
        assert (result.final_step, result.samples_repeated, result.samples_missing) == (60, 0, 0)
    assert after.counters.charged == 1
    assert len(clean_yard.events(killed, EventKind.ROUND_STARTED)) == 2
    assert len(clean_yard.events(killed, EventKind.ATTEMPT_STARTED)) == 1


def test_a_killed_driver_is_replaced_and_the_job_succeeds_once(clean_yard: LiveYard):
    job = clean_yard.submit(llama("driverless", steps=200))
    clean_yard.wait(job, lambda seen: seen.step >= 20, "step 20")
    drivers = [p for p in clean_yard.processes_of(job) if "drive" in p.cmdline()]
    assert drivers
    for process in drivers:
        process.kill()
    done = clean_yard.finish(job)
    assert done.state == "succeeded", clean_yard.story(job)
    assert done.generation == 2
    assert done.result is not None
    assert (done.result.final_step, done.result.samples_repeated, done.result.samples_missing) == (200, 0, 0)
    resumed = clean_yard.events(job, EventKind.ROUND_STARTED)[-1]
    assert resumed.generation == 2
    assert (resumed.step or 0) >= 10
    assert len(clean_yard.events(job, EventKind.FINISHED)) == 1


def test_training_does_not_notice_that_the_orchestrator_was_killed(clean_yard: LiveYard):
    job = clean_yard.submit(llama("unattended", steps=400))
    clean_yard.wait(job, lambda seen: seen.step >= 10, "step 10")
    pids = clean_yard.rank_pids(job)
    clean_yard.kill_service()
    try:
        before = clean_yard.checkpoints_on_disk(job)
        wait_until(
            lambda: clean_yard.checkpoints_on_disk(job) - before, "training goes on without an orchestrator"
        )
    finally:
        clean_yard.start_service()
    done = clean_yard.finish(job)
    assert done.state == "succeeded", clean_yard.story(job)
    assert done.generation == 1
    assert clean_yard.rank_pids(job) == pids
    assert len(clean_yard.events(job, EventKind.FINISHED)) == 1
    by_driver = [e for e in clean_yard.events(job) if e.kind not in {EventKind.STATE, EventKind.GRANTED}]
    told = [(event.generation, event.sequence) for event in by_driver]
    assert len(told) == len(set(told))


def test_jobs_and_their_history_outlive_the_orchestrator(clean_yard: LiveYard):
    job = clean_yard.finish(clean_yard.submit(llama("remembered", steps=12)))
    events = clean_yard.events(job)
    clean_yard.kill_service()
    clean_yard.start_service()
    assert clean_yard.job(job) == job
    assert clean_yard.events(job) == events


def test_a_frozen_orchestrator_fails_no_job(clean_yard: LiveYard):
    job = clean_yard.submit(llama("patient", steps=600))
    clean_yard.wait(job, lambda seen: seen.step >= 10, "step 10")
    assert clean_yard.yard is not None
    pid = clean_yard.yard.service.service.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        before = clean_yard.checkpoints_on_disk(job)
        wait_until(lambda: clean_yard.checkpoints_on_disk(job) - before, "training goes on")
    finally:
        os.kill(pid, signal.SIGCONT)
    done = clean_yard.finish(job)
    assert (done.state, done.generation, done.counters.charged) == ("succeeded", 1, 0), clean_yard.story(job)


def test_a_frozen_rank_is_named_and_costs_a_round(clean_yard: LiveYard):
    """B093: it is not waited for until a collective times out, and nobody else is blamed."""
    job = clean_yard.submit(llama("frozen", steps=400))
    clean_yard.wait(job, lambda seen: seen.step >= 20, "step 20")
    os.kill(clean_yard.rank_pids(job)[1], signal.SIGSTOP)
    done = clean_yard.finish(job)
    assert done.state == "succeeded", clean_yard.story(job)
    [failed] = clean_yard.events(job, EventKind.ROUND_FAILED)
    assert failed.rank == 1, failed.message
    assert failed.message.startswith("hang: rank 1 on ")
    assert done.counters.charged == 1
    assert done.result is not None
    assert (done.result.samples_repeated, done.result.samples_missing) == (0, 0)


def test_a_paused_job_leaves_the_cluster_and_goes_on_without_repeating_a_step(clean_yard: LiveYard):
    """B127."""
    job = clean_yard.submit(llama("lunch", steps=400, every_steps=1000))
    clean_yard.wait(job, lambda seen: seen.step >= 20, "step 20")
    with clean_yard.client as client:
        client.pause(job.id, by="ada")
    away = clean_yard.wait(job, lambda seen: seen.state == "paused", "it is paused")
    assert away.reason == "paused by ada"
    wait_until(lambda: not clean_yard.processes_of(job), "nothing of it is left in the cluster")
    with clean_yard.client as client:
        client.resume(job.id, by="ada")
    done = clean_yard.finish(job)
    assert done.state == "succeeded", clean_yard.story(job)
    assert (done.generation, done.counters.charged) == (2, 0)
    assert done.result is not None
    assert (done.result.final_step, done.result.replayed_steps) == (400, 0)
    assert (done.result.samples_repeated, done.result.samples_missing) == (0, 0)
    [left] = clean_yard.events(job, EventKind.DRAINED)
    assert clean_yard.events(job, EventKind.ROUND_STARTED)[-1].step == left.step == away.step
