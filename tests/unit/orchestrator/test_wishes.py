"""Pause, resume and retry, over the whole control plane: what drivers are told, and what becomes of the job."""

from orchestrator.cluster import RayJobState
from orchestrator.job import JobState
from workers.contract.failure import FailureClass
from workers.contract.restart import Counters


def paused(yard) -> str:
    """A job that ran, was paused, and has left the cluster."""
    job_id = yard.running()
    yard.service.pause(job_id, by="ada", reason="nightly backup")
    yard.report(job_id, "drained", step=9)
    yard.ray.end(f"{job_id}-1")
    yard.ticks(2)
    return job_id


def test_a_paused_job_saves_first_and_holds_nothing_afterwards(yard) -> None:
    job_id = yard.running()
    yard.service.pause(job_id, by="ada", reason="nightly backup")
    told = yard.report(job_id, "running", step=8)
    assert (told.action, told.reason) == ("drain", "paused by ada: nightly backup")
    job = yard.job(job_id)
    assert (job.state, job.reason) == (JobState.DRAINING, "paused by ada: nightly backup")
    yard.ticks(40)
    assert yard.ray.stops == [], "a rank may take as long as its step takes"
    yard.report(job_id, "drained", step=9)
    yard.ray.end(f"{job_id}-1")
    yard.ticks(40)
    job = yard.job(job_id)
    assert (job.state, job.reason, job.step) == (JobState.PAUSED, "paused by ada: nightly backup", 9)
    assert (job.holds_resources, list(yard.ray.submitted)) == (False, [f"{job_id}-1"])


def test_a_resumed_job_goes_on_and_its_pause_is_not_charged(yard) -> None:
    job_id = paused(yard)
    yard.service.resume(job_id, by="bob")
    yard.ticks(1)
    yard.report(job_id, "running", step=10)
    job = yard.job(job_id)
    assert (job.state, job.generation) == (JobState.RUNNING, 2)
    assert (job.counters.charged, job.counters.uncharged) == (0, 0)
    assert yard.ray.submitted[f"{job_id}-2"][0].wait_seconds == 0, "its driver ended in order"


def test_a_job_that_waits_is_paused_at_once_and_makes_way(yard) -> None:
    first, second = yard.submit(), yard.submit()
    yard.service.pause(first)
    yard.ticks(2)
    assert (yard.job(first).state, yard.job(second).generation) == (JobState.PAUSED, 1)


def test_a_driver_that_never_reported_has_nothing_to_save_and_is_ended(yard) -> None:
    job_id = yard.submit()
    yard.controller.tick()
    yard.service.pause(job_id)
    yard.ticks(40)
    assert yard.ray.stops[:1] == [f"{job_id}-1"]
    yard.ray.end(f"{job_id}-1", RayJobState.STOPPED)
    yard.ticks(2)
    job = yard.job(job_id)
    assert (job.state, job.counters.charged) == (JobState.PAUSED, 0)


def test_who_resumes_while_ranks_leave_is_served_when_they_have_left(yard) -> None:
    job_id = yard.running()
    yard.service.pause(job_id, by="ada")
    yard.service.resume(job_id, by="bob")
    assert yard.report(job_id, "running", step=8).action == "drain"
    yard.report(job_id, "drained", step=9)
    yard.ray.end(f"{job_id}-1")
    yard.ticks(2)
    job = yard.job(job_id)
    assert (job.generation, job.state, job.counters.charged) == (2, JobState.STARTING, 0)


def test_a_failed_job_is_tried_again_with_its_whole_budget(yard, make) -> None:
    job_id = yard.running()
    spent = Counters(charged=5, rounds=5, furthest_step=3)
    yard.report(job_id, "failed", step=3, verdict=make.verdict(FailureClass.RANK_LOST), counters=spent)
    yard.ray.end(f"{job_id}-1")
    yard.service.retry(job_id, by="ada")
    yard.ticks(3)
    job = yard.job(job_id)
    assert (job.generation, job.state, job.ended_at, job.verdict) == (2, JobState.STARTING, None, None)
    assert (job.counters.charged, job.counters.rounds, job.counters.furthest_step) == (0, 5, 3)
    messages = [one.event.message for one in yard.service.events(job_id).events]
    assert "failed -> queued: retried by ada" in messages


def test_a_cancelled_job_is_tried_again_and_a_finished_one_is_not(yard) -> None:
    cancelled = yard.submit()
    yard.service.cancel(cancelled)
    yard.service.retry(cancelled)
    assert (yard.job(cancelled).state, yard.job(cancelled).desired) == (JobState.QUEUED, "run")
    yard.ticks(1)
    yard.finish(cancelled)
    before = yard.job(cancelled)
    assert before.state is JobState.SUCCEEDED
    assert yard.service.retry(cancelled) == before
