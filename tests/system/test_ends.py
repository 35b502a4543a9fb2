"""How jobs end: cancelled in every state, failed by user code, waiting with a reason; and nothing of them is left."""

from pathlib import Path

import psutil
import pytest
from live_yard import LiveYard, llama, user_task, wait_until

from workers.contract.events import EventKind

pytestmark = pytest.mark.system


def words_of(process: psutil.Process) -> str:
    try:
        return f"{process.name()} {process.cmdline()} {process.status()}"
    except psutil.Error:
        return "gone meanwhile"


def is_rays_start_or_watch(words: str) -> bool:
    """Ray's watcher of a driver, or a worker that Ray was still starting up: it has run nothing of a job, and ends at once.

    A worker takes another name once it has started.
    """
    return "JobSupervisor" in words or words == "gone meanwhile" or words.startswith("python ['")


def cancel(yard: LiveYard, job):
    with yard.client as client:
        client.cancel(job.id, by="a test")
    ended = yard.finish(job, seconds=60)
    assert ended.state == "cancelled", ended.reason
    left = yard.processes_of(job)
    told = {p.pid: words for p in left if not is_rays_start_or_watch(words := words_of(p))}
    assert told == {}, "said only when it is true"
    wait_until(lambda: yard.processes_of(job) == [], "Ray's own are gone, too")
    return ended


def test_an_exception_of_user_code_fails_the_job_at_once_with_its_traceback(clean_yard: LiveYard):
    job = clean_yard.finish(clean_yard.submit(user_task("raises", do="raises", rank=1)))
    assert job.state == "failed"
    assert job.verdict is not None
    assert (job.verdict.failure_class, job.verdict.first_rank) == ("user_code", 1)
    assert "marker-123" in job.reason
    assert "misbehave.py" in job.verdict.traceback
    assert job.generation == 1
    assert clean_yard.events(job, EventKind.RESTART) == []
    wait_until(lambda: clean_yard.processes_of(job) == [], "its processes are gone")
    with clean_yard.client as client:
        logs = [log for log in client.logs(job.id) if log.rank == 1]
        text = client.read_log(job.id, logs[0]).text
    assert "ValueError: marker-123" in text


def test_a_job_that_waits_says_for_what_and_starts_when_there_is_room(clean_yard: LiveYard):
    first = clean_yard.submit(llama("first", steps=2_000, workers=3))
    clean_yard.wait(first, lambda job: job.state != "queued", "a grant")
    second = clean_yard.submit(llama("second", steps=12, workers=2))
    waiting = clean_yard.wait(second, lambda job: "2 workers" in job.reason, "a reason")
    assert waiting.state == "queued"
    assert "1 of 4" in waiting.reason
    cancel(clean_yard, first)
    assert clean_yard.finish(second).state == "succeeded"


def test_what_the_cluster_can_never_hold_is_said_and_does_not_block_the_queue(clean_yard: LiveYard):
    huge = clean_yard.submit(
        llama("huge", workers=2).replace("num_workers: 2", "num_workers: 2, cpus_per_worker: 1000")
    )
    seen = clean_yard.wait(huge, lambda job: "1000" in job.reason, "a reason")
    assert seen.state == "queued"
    small = clean_yard.submit(llama("small", steps=12))
    assert clean_yard.finish(small).state == "succeeded"
    cancel(clean_yard, huge)


def test_cancel_works_while_a_job_starts_runs_and_recovers(clean_yard: LiveYard, tmp_path: Path):
    """B128: a handler of SIGTERM that training code brings along has its chance."""
    starting = clean_yard.submit(llama("starting"))
    clean_yard.wait(starting, lambda job: job.state == "starting", "starting")
    cancel(clean_yard, starting)

    minds = user_task("running", steps=5_000, seconds=0.02, leaves=True, note=str(tmp_path / "note"))
    running = clean_yard.submit(minds.replace("misbehave:make", "own_handler:make"))
    clean_yard.wait(running, lambda job: job.state == "running" and job.step > 100, "its handler is known")
    ended = cancel(clean_yard, running)
    assert "a test" in ended.reason
    assert [(tmp_path / f"note.{rank}").read_text() for rank in range(2)] == ["signal 15"] * 2

    recovering = clean_yard.submit(llama("recovering", steps=5_000))
    clean_yard.wait(recovering, lambda job: job.state == "running" and job.step > 10, "running")
    clean_yard.kill_rank(recovering, 0)
    cancel(clean_yard, recovering)


def test_cancel_of_an_ended_job_changes_nothing(clean_yard: LiveYard):
    job = clean_yard.finish(clean_yard.submit(llama("ended", steps=12)))
    with clean_yard.client as client:
        assert client.cancel(job.id).state == "succeeded"
    assert clean_yard.job(job) == job


def test_the_cluster_is_free_again_after_jobs_that_came_to_nothing(clean_yard: LiveYard):
    jobs = [clean_yard.submit(llama(f"brief-{number}")) for number in range(4)]
    for job in jobs:
        cancel(clean_yard, job)
    whole = clean_yard.submit(llama("whole", steps=12, workers=4))
    assert clean_yard.finish(whole).state == "succeeded"
