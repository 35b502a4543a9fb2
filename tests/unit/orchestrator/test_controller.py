"""The controller tick by tick: a real store, a Ray that keeps books, a clock in the test's hand."""

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cluster import Node, RayJobState
from orchestrator.controller import ERROR_LIMIT
from orchestrator.job import GenerationState, JobState
from orchestrator.working_dir import WorkingDirError
from workers.contract.events import EventKind
from workers.contract.rundir import events_dir, samples_dir


def test_a_queued_job_is_granted_and_submitted_in_one_tick(yard) -> None:
    job_id = yard.submit("scaling.num_workers=[1, 8]")
    yard.controller.tick()
    request, token = yard.ray.submitted[f"{job_id}-1"]
    assert (request.world_size, request.gpus_per_worker, request.generation) == (4, 0, 1)
    assert (request.run_dir, request.wait_seconds) == (yard.job(job_id).run_dir, 0.0)
    assert token not in request.to_json()
    assert yard.job(job_id).state is JobState.STARTING
    assert yard.controller.sight.is_reachable


def test_a_job_runs_to_its_end_and_gives_its_room_back(yard) -> None:
    first, second = yard.running("scaling.num_workers=4"), yard.submit("scaling.num_workers=4")
    yard.controller.tick()
    assert yard.job(second).reason == "waits for 4 workers x 1 CPU: 0 of 4 CPUs free; first in the queue"
    yard.finish(first)
    yard.controller.tick()
    assert yard.job(second).state is JobState.QUEUED, "the driver has not ended yet"
    yard.ray.end(f"{first}-1")
    yard.controller.tick()
    assert yard.job(second).state is JobState.STARTING
    assert yard.told(first) == [
        "None -> queued",
        "queued -> starting",
        "starting -> running",
        "running -> succeeded",
    ]
    assert yard.ray.stops == []


def test_a_job_that_never_fits_says_so_and_starts_once_there_is_room(yard) -> None:  # B102
    job_id = yard.submit("scaling.cpus_per_worker=8")
    yard.controller.tick()
    reason = yard.job(job_id).reason
    assert reason == "unschedulable: needs 1 worker x 8 CPUs, the largest node has 4 CPUs"
    assert yard.told(job_id) == ["None -> queued"]
    yard.ray.nodes = (*yard.ray.nodes, Node(node_id="n2", address="127.0.0.3", cpus=8))
    yard.controller.tick()
    assert yard.job(job_id).state is JobState.STARTING


@pytest.mark.parametrize("where", ["before Ray", "after Ray"])
def test_a_crash_around_the_submission_is_repaired_and_submits_once(yard, where: str) -> None:
    job_id = yard.submit()
    submit = yard.ray.submit

    def crash(request, **arguments):
        if where == "after Ray":
            submit(request, **arguments)
        raise KeyboardInterrupt

    yard.ray.submit = crash
    with pytest.raises(KeyboardInterrupt):
        yard.controller.tick()
    assert yard.job(job_id).current.state is GenerationState.GRANTED
    yard.ray.submit = submit
    yard.restart()
    yard.ticks(2)
    assert list(yard.ray.submitted) == [f"{job_id}-1"]
    assert yard.job(job_id).current.state is GenerationState.SUBMITTED
    assert yard.report(job_id, "running", step=1).action == "run", "the token that Ray was given holds"


def test_ray_away_for_a_while_costs_a_running_job_nothing(yard, unavailable) -> None:  # B114, B117
    job_id = yard.running()
    waiting = yard.submit("scaling.num_workers=4")
    for _ in range(3):
        yard.ray.fault = unavailable
        yard.ticks(30)
        assert not yard.controller.sight.is_reachable
        yard.report(job_id, "running", step=9)
        yard.ray.fault = None
        yard.ticks(5)
    job = yard.job(job_id)
    assert (job.state, job.generation, job.counters.charged, job.step) == (JobState.RUNNING, 1, 0, 9)
    assert yard.job(waiting).state is JobState.QUEUED
    assert yard.controller.ticks == {"ok": 16, "ray_unavailable": 90, "error": 0}


def test_a_waiting_job_says_that_ray_does_not_answer(yard, unavailable) -> None:
    job_id = yard.submit()
    yard.ray.fault = unavailable
    yard.controller.tick()
    assert yard.job(job_id).reason == "waits for the cluster: connection refused"


def test_a_job_that_ray_does_not_take_says_so_and_holds_up_nobody(yard, unavailable) -> None:
    refused, healthy = yard.submit(), yard.submit()
    submit = yard.ray.submit

    tokens = set()

    def refuse_one(request, **arguments):
        if request.job_id == refused:
            tokens.add(arguments["report_token"])
            raise unavailable
        submit(request, **arguments)

    yard.ray.submit = refuse_one
    yard.ticks(3)
    assert yard.job(refused).reason == "waits for Ray to take it: connection refused"
    yard.report(healthy, "running", step=1)
    yard.finish(healthy)
    yard.ray.end(f"{healthy}-1")
    yard.ticks(20)
    assert not yard.job(healthy).holds_resources
    assert yard.job(refused).state is JobState.STARTING
    yard.ray.submit = submit
    yard.controller.tick()
    assert yard.job(refused).current.state is GenerationState.SUBMITTED
    assert yard.job(refused).reason == "generation 1 starts with 1 worker x 1 CPU"
    assert tokens == {yard.ray.submitted[f"{refused}-1"][1]}, "a token is stored once, not at every try"


def test_a_lost_driver_becomes_a_new_generation_after_its_lease(yard) -> None:
    job_id = yard.running()
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED, "killed by signal 9")
    yard.ray.held[f"{job_id}-1"] = ["actor Relay (ALIVE)"]
    yard.controller.tick()
    job = yard.job(job_id)
    assert (job.state, job.generation) == (JobState.RECOVERING, 1)
    assert "killed by signal 9" in job.reason
    yard.clock.pass_(4)
    yard.ray.held.clear()
    yard.controller.tick()
    request, _ = yard.ray.submitted[f"{job_id}-2"]
    assert request.wait_seconds == pytest.approx(15 - 4)
    assert request.counters.charged == 1
    assert yard.job(job_id).state is JobState.RECOVERING
    yard.report(job_id, "running", step=2)
    assert yard.job(job_id).state is JobState.RUNNING


def test_a_service_that_restarts_in_between_waits_the_whole_lease(yard) -> None:  # B130
    job_id = yard.running()
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED)
    yard.controller.tick()
    yard.restart()
    yard.controller.tick()
    assert yard.ray.submitted[f"{job_id}-2"][0].wait_seconds == 15


def test_the_driver_of_an_older_generation_is_told_to_stop_and_changes_nothing(yard, make) -> None:
    job_id = yard.running()
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED)
    yard.ticks(2)
    late = yard.report(job_id, "finished", step=200, generation=1, result=make.result())
    assert (late.action, late.generation) == ("stop", 2)
    assert yard.job(job_id).state is JobState.RECOVERING


def test_a_driver_that_was_given_up_is_told_to_stop_before_another_takes_over(yard) -> None:  # B114
    job_id = yard.running()
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED, "the supervisor died")
    yard.ray.held[f"{job_id}-1"] = ["actor Relay (ALIVE)"]
    yard.controller.tick()
    assert yard.job(job_id).generation == 1
    late = yard.report(job_id, "running", step=9)
    assert (late.action, late.generation) == ("stop", 1)
    assert "generation 1 was given up" in late.reason


def test_a_cluster_that_was_replaced_restarts_every_open_job_and_no_other(yard) -> None:  # B115
    done, open_ = yard.running(), yard.running()
    yard.finish(done)
    yard.ray.end(f"{done}-1")
    yard.ticks(1)
    yard.ray.states.clear()
    yard.ticks(10)
    assert yard.job(open_).generation == 2
    assert yard.job(done).state is JobState.SUCCEEDED
    assert list(yard.ray.submitted) == [f"{done}-1", f"{open_}-1", f"{open_}-2"]
    lost = [e.event for e in yard.service.events(open_).events if e.event.kind is EventKind.RESTART]
    assert "the cluster was replaced" in lost[0].message


def test_a_last_word_that_comes_while_ray_is_asked_is_not_a_loss(yard) -> None:
    job_id = yard.running()
    yard.ray.end(f"{job_id}-1")
    yard.ray.before_status = lambda: yard.finish(job_id)
    yard.ticks(2)
    assert yard.job(job_id).state is JobState.SUCCEEDED
    assert list(yard.ray.submitted) == [f"{job_id}-1"]


def spool(yard, job_id: str, *events) -> None:
    root = events_dir(yard.job(job_id).run_dir)
    root.mkdir(parents=True)
    (root / "g1-000000000.jsonl").write_text("".join(event.to_json() + "\n" for event in events))


def test_a_job_that_finished_while_the_service_was_down_has_succeeded_once(yard, make) -> None:
    job_id = yard.running()
    yard.report(job_id, "running", step=4, events=[make.event(0)])
    finished = make.event(2, EventKind.FINISHED, data=make.result().model_dump())
    spool(yard, job_id, make.event(0), make.event(1), finished)
    yard.ray.end(f"{job_id}-1")
    yard.restart()
    yard.ticks(3)
    job = yard.job(job_id)
    assert (job.state, job.result, job.step, job.holds_resources) == (
        JobState.SUCCEEDED,
        make.result(),
        200,
        False,
    )
    assert list(yard.ray.submitted) == [f"{job_id}-1"]
    driver = [one.event.sequence for one in yard.service.events(job_id).events if one.source == "driver"]
    assert driver == [0, 1, 2]


def test_the_loss_of_a_job_that_ended_while_the_service_was_down_is_whole(yard, make) -> None:
    job_id = yard.running()
    yard.report(job_id, "running", step=4, samples=[make.sample(4)])
    finished = make.event(0, EventKind.FINISHED, data=make.result().model_dump())
    spool(yard, job_id, finished)
    root = samples_dir(yard.job(job_id).run_dir)
    root.mkdir(parents=True)
    lines = [make.sample(step).to_json() + "\n" for step in range(1, 9)]
    (root / "g1-000000000.jsonl").write_text("".join(lines))
    yard.ray.end(f"{job_id}-1")
    yard.restart()
    yard.ticks(3)
    assert [point.step for point in yard.service.measurements(job_id).losses] == [4, 5, 6, 7, 8]


def test_a_job_that_failed_while_the_service_was_down_has_its_traceback(yard, make) -> None:
    job_id = yard.running()
    data = {"verdict": make.verdict().model_dump(mode="json"), "reason": "user_code is not retried"}
    spool(yard, job_id, make.event(0, EventKind.FAILED, data=data))
    yard.ray.end(f"{job_id}-1")
    yard.ticks(2)
    job = yard.job(job_id)
    assert (job.state, job.verdict) == (JobState.FAILED, make.verdict())
    assert "marker-123" in job.reason


def test_a_spool_without_a_last_word_is_kept_and_the_job_restarts(yard, make) -> None:
    job_id = yard.running()
    spool(yard, job_id, make.event(0), make.event(1))
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED)
    yard.ticks(2)
    assert yard.job(job_id).generation == 2
    assert len([one for one in yard.service.events(job_id).events if one.source == "driver"]) == 2


def test_a_cancelled_job_is_cancelled_only_when_ray_holds_nothing_of_it(yard) -> None:  # B082, B086
    job_id = yard.running()
    yard.service.cancel(job_id, by="ada")
    yard.report(job_id, "stopped", step=5)
    yard.controller.tick()
    assert yard.job(job_id).state is JobState.RUNNING, "its driver is still there"
    yard.ray.end(f"{job_id}-1")
    yard.ray.held[f"{job_id}-1"] = ["placement group 1"]
    yard.ticks(3)
    assert yard.job(job_id).state is JobState.RUNNING
    assert yard.job(job_id).reason.startswith("cancelling (by ada)")
    yard.ray.held.clear()
    yard.controller.tick()
    job = yard.job(job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by ada")


def test_a_driver_that_does_not_hear_is_stopped_after_its_grace(yard) -> None:
    job_id = yard.running()
    yard.service.cancel(job_id)
    yard.ticks(30)
    assert yard.ray.stops == []
    yard.ticks(3)
    assert yard.ray.stops == [f"{job_id}-1"]
    yard.ticks(2)
    assert yard.job(job_id).state is JobState.CANCELLED


def test_a_job_whose_environment_is_being_built_is_cancelled_within_two_ticks(yard) -> None:  # B103
    job_id = yard.submit()
    yard.controller.tick()
    yard.ray.end(f"{job_id}-1", RayJobState.PENDING)
    yard.service.cancel(job_id)
    yard.ticks(2)
    assert yard.job(job_id).state is JobState.CANCELLED
    yard.ticks(20)
    assert list(yard.ray.submitted) == [f"{job_id}-1"]


def test_a_cancel_between_grant_and_submission_submits_nothing(yard, unavailable) -> None:  # B103
    job_id = yard.submit()
    yard.ray.submit_fault = unavailable
    yard.controller.tick()
    yard.service.cancel(job_id)
    yard.ray.submit_fault = None
    yard.controller.tick()
    assert yard.job(job_id).state is JobState.CANCELLED
    assert yard.ray.submitted == {}


def test_a_job_whose_cancel_meets_a_dead_driver_is_cancelled_not_restarted(yard) -> None:  # B140
    job_id = yard.running()
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED)
    yard.service.cancel(job_id)
    yard.ticks(3)
    assert yard.job(job_id).state is JobState.CANCELLED
    assert list(yard.ray.submitted) == [f"{job_id}-1"]


def test_a_failed_job_whose_driver_lingers_gets_its_room_back(yard, make) -> None:  # B083
    job_id = yard.running()
    yard.report(job_id, "failed", step=3, verdict=make.verdict())
    assert yard.job(job_id).state is JobState.FAILED
    yard.ticks(40)
    assert yard.ray.stops == [f"{job_id}-1"]
    assert not yard.job(job_id).holds_resources


def test_a_job_that_was_not_placed_tries_again_uncharged(yard) -> None:
    job_id = yard.submit()
    yard.controller.tick()
    yard.report(job_id, "not_placed")
    yard.ray.end(f"{job_id}-1")
    yard.ticks(2)
    job = yard.job(job_id)
    assert (job.generation, job.counters.charged, job.counters.uncharged) == (2, 0, 1)
    assert yard.ray.submitted[f"{job_id}-2"][0].wait_seconds == 0, "its driver ended in order"


def test_back_off_is_waited_for_on_a_clock_that_cannot_step_back(yard) -> None:  # B130
    job_id = yard.submit()
    for generation in (1, 2):
        yard.controller.tick()
        yard.ray.end(f"{job_id}-{generation}", RayJobState.FAILED)
        yard.controller.tick()
    for year in (2020, 2040):
        yard.clock.wall = yard.clock.wall.replace(year=year)
        yard.controller.tick()
        assert yard.job(job_id).reason.startswith("restarts in 1 s")
    yard.clock.pass_(1)
    yard.controller.tick()
    assert yard.job(job_id).generation == 3


def test_a_working_directory_that_cannot_be_shipped_ends_the_job_as_the_users_mistake(yard) -> None:
    job_id = yard.submit()
    yard.ray.submit_fault = WorkingDirError("runtime.working_dir: /x is gone")
    yard.controller.tick()
    job = yard.job(job_id)
    assert job.state is JobState.FAILED
    assert "/x is gone" in job.reason
    yard.ticks(10)
    assert not yard.job(job_id).holds_resources


def test_an_unexpected_error_once_leaves_the_job_alone(yard) -> None:  # B123
    job_id, other = yard.running(), yard.running()
    yard.ray.before_status = _raise_once()
    yard.ticks(5)
    assert [yard.job(one).state for one in (job_id, other)] == [JobState.RUNNING, JobState.RUNNING]
    assert yard.job(job_id).counters.charged == 0


def _raise_once():
    left = [ValueError("bookkeeping")]

    def raise_once() -> None:
        if left:
            raise left.pop()

    return raise_once


def test_an_error_that_never_stops_ends_its_own_job_and_no_other(yard) -> None:  # B123
    healthy = yard.running()
    job_id = yard.submit()
    yard.ray.submit_fault = ValueError("bookkeeping")
    yard.ticks(400)
    job = yard.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "orchestrator error: ValueError: bookkeeping")
    assert not job.holds_resources, "and nothing of it is left"
    assert yard.job(healthy).state is JobState.RUNNING


def test_errors_come_further_and_further_apart(yard) -> None:  # B123
    job_id = yard.submit()
    yard.ray.submit_fault = ValueError("bookkeeping")
    yard.ticks(60)
    assert yard.job(job_id).state is JobState.STARTING, (
        f"{ERROR_LIMIT} errors are minutes apart, not one minute"
    )


def test_an_error_that_goes_on_for_days_never_costs_the_other_jobs_their_ticks(yard) -> None:  # B123
    yard.running()
    yard.ray.before_status = _raise_always
    for _ in range(1100):
        yard.clock.pass_(61)
        yard.controller.tick()
    yard.ray.before_status = lambda: None
    healthy = yard.submit()
    yard.ticks(2)
    assert f"{healthy}-1" in yard.ray.submitted


def _raise_always() -> None:
    raise ValueError("bookkeeping")


def test_the_loop_outlives_a_tick_that_fails(yard) -> None:
    stop, ticked = threading.Event(), threading.Semaphore(0)
    capacity = yard.ray.capacity

    def fail_once():
        ticked.release()
        yard.ray.capacity = count
        raise ValueError("bookkeeping")

    def count():
        ticked.release()
        return capacity()

    yard.ray.capacity = fail_once
    thread = threading.Thread(target=yard.controller.run, args=(stop,))
    thread.start()
    try:
        for _ in range(2):
            assert ticked.acquire(timeout=30)
            yard.controller.wake()
    finally:
        stop.set()
        yard.controller.wake()
        thread.join(30)
    assert not thread.is_alive()
    assert yard.controller.ticks["error"] == 1


def test_many_jobs_pass_through_a_small_cluster_in_order(yard) -> None:  # B086, B087
    jobs = [yard.submit(f"scaling.num_workers=[1, {1 + number % 4}]") for number in range(12)]
    started: list[str] = []
    for _ in range(200):
        yard.controller.tick()
        started += [name for name in yard.ray.submitted if name not in started]
        in_use = [job.current.gang.workers for job in yard.store.open_jobs() if job.holds_resources]
        assert sum(in_use) <= 4
        for job in yard.store.open_jobs():
            if job.holds_resources and not job.state.is_terminal:
                yard.finish(job.id)
                yard.ray.end(f"{job.id}-1")
        yard.clock.pass_(1)
    assert started == [f"{job}-1" for job in jobs]
    assert {yard.job(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert (yard.controller.sight.held_cpus, yard.store.open_jobs()) == (0, ())


def test_a_spool_that_cannot_be_read_does_not_keep_the_job_from_restarting(yard) -> None:
    job_id = yard.running()
    root = Path(events_dir(yard.job(job_id).run_dir))
    root.parent.mkdir(parents=True)
    root.write_text("not a directory")
    yard.ray.end(f"{job_id}-1", RayJobState.FAILED)
    yard.ticks(2)
    assert yard.job(job_id).generation == 2


class Crash(BaseException):
    """The process is gone: nothing catches this."""


def test_a_crash_at_any_call_or_commit_is_repaired_by_the_next_service(yard, monkeypatch) -> None:
    """The whole life of a job, with a lost driver in it, cut off at every single step."""
    left = [0]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash

    for name in ("capacity", "submit", "status", "leftovers"):
        monkeypatch.setattr(yard.ray, name, _crashing(getattr(yard.ray, name), step))
    monkeypatch.setattr(yard.store, "unit", _crashing_unit(yard.store.unit, step))
    crash_at = 0
    while True:
        crash_at += 1
        left[0] = crash_at
        job_id, crashes = _live_through(yard)
        job = yard.job(job_id)
        assert (job.state, job.generation, job.counters.charged, job.holds_resources) == (
            JobState.SUCCEEDED,
            2,
            1,
            False,
        ), crash_at
        told = [one.event for one in yard.service.events(job_id).events]
        assert [e.kind for e in told].count(EventKind.GRANTED) == 2, crash_at
        assert [e.kind for e in told].count(EventKind.RESTART) == 1, crash_at
        if not crashes:
            break
    assert crash_at > 20, "the life of a job has many steps"


def _crashing_unit(unit, step):
    """Crash before the transaction in one run, and after its commit in the next."""

    @contextmanager
    def around(job_id: str):
        step()
        with unit(job_id) as opened:
            yield opened
        step()

    return around


def _crashing(method, step):
    """Crash before the call in one run and after it in the next."""

    def call(*arguments, **named):
        step()
        answer = method(*arguments, **named)
        step()
        return answer

    return call


def _live_through(yard) -> tuple[str, int]:
    """Play a job from submit to release, starting a new service after each crash."""
    job_id, crashes = yard.submit(), 0
    is_lost = False
    while (job := yard.job(job_id)).holds_resources or not job.state.is_terminal:
        try:
            yard.controller.tick()
            name = f"{job_id}-{yard.job(job_id).generation}"
            if name not in yard.ray.submitted:
                continue
            if not is_lost:
                yard.ray.end(name, RayJobState.FAILED)
                is_lost = True
            elif name.endswith("-2") and not yard.job(job_id).state.is_terminal:
                yard.finish(job_id)
                yard.ray.end(name)
        except Crash:
            crashes += 1
            yard.restart()
        yard.clock.pass_(1)
    return job_id, crashes
