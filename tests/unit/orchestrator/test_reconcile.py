"""What one open generation needs next, for every state of it and of Ray."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrator.cluster import RayJobState, RayJobStatus
from orchestrator.gang import Gang
from orchestrator.job import Generation, GenerationState, Job, JobState
from orchestrator.reconcile import (
    Limits,
    MarkLost,
    MarkReleased,
    MarkSubmitted,
    Seen,
    StopRayJob,
    SubmitRayJob,
    reconcile,
)
from workers.contract.failure import FailureClass

LIMITS = Limits(stop_grace=30.0, missing_grace=5.0)
GRANTED = Generation(
    number=1,
    gang=Gang(workers=2, cpus_per_worker=1, gpus_per_worker=0),
    granted_at=datetime(2026, 3, 1, tzinfo=UTC),
)
SUBMITTED = replace(GRANTED, state=GenerationState.SUBMITTED, has_reported=True)
ENDED = replace(SUBMITTED, state=GenerationState.ENDED, final_phase="finished")
OVER = [state for state in RayJobState if state.is_over]
ALIVE = [state for state in RayJobState if not state.is_over]


def seen(state: RayJobState, *, seconds: float = 1e6, **more: object) -> Seen:
    return replace(Seen(status=RayJobStatus(state=state), seconds_in_phase=seconds), **more)


def names(actions: tuple[object, ...]) -> list[str]:
    return [type(action).__name__ for action in actions]


@pytest.fixture
def job(make) -> Job:
    return make.job(state=JobState.RUNNING, awaits_grant=False, current=SUBMITTED, step=12)


def test_a_grant_is_submitted_exactly_where_ray_does_not_know_it(job: Job) -> None:
    for state in RayJobState:
        actions = reconcile(job, GRANTED, seen(state), LIMITS)
        expected = SubmitRayJob() if state is RayJobState.MISSING else MarkSubmitted()
        assert actions == (expected,), state


def test_a_grant_that_was_cancelled_before_ray_took_it_is_never_submitted(job: Job) -> None:  # B103
    cancelled = job.evolve(desired="cancel")
    assert reconcile(cancelled, GRANTED, seen(RayJobState.MISSING), LIMITS) == (MarkReleased(),)


@pytest.mark.parametrize("state", ALIVE)
def test_a_running_generation_is_left_alone(job: Job, state: RayJobState) -> None:
    assert reconcile(job, SUBMITTED, seen(state), LIMITS) == ()


@pytest.mark.parametrize("state", OVER)
def test_a_driver_that_ended_without_a_last_word_is_lost(job: Job, state: RayJobState) -> None:
    lost, released = reconcile(job, SUBMITTED, seen(state), LIMITS)
    assert isinstance(lost, MarkLost)
    assert lost.verdict.failure_class is FailureClass.DRIVER_LOST
    assert lost.verdict.step == 12
    assert released == MarkReleased()


@pytest.mark.parametrize("state", OVER)
def test_a_lost_driver_that_still_holds_something_is_not_released(job: Job, state: RayJobState) -> None:
    held = seen(state, leftovers=("actor X",))
    assert names(reconcile(job, SUBMITTED, held, LIMITS)) == ["MarkLost"]


def test_a_job_that_ray_forgets_for_a_moment_is_not_lost(job: Job) -> None:  # B114
    assert reconcile(job, SUBMITTED, seen(RayJobState.MISSING, seconds=4.9), LIMITS) == ()


def test_an_environment_that_cannot_be_built_is_the_users_and_not_retried(job: Job) -> None:  # B099
    status = RayJobStatus(state=RayJobState.FAILED, message="runtime_env setup failed: no module named nope")
    generation = replace(SUBMITTED, has_reported=False)
    action = reconcile(job, generation, Seen(status=status), LIMITS)[0]
    assert isinstance(action, MarkLost)
    assert action.verdict.failure_class is FailureClass.CONFIG
    assert "no module named nope" in action.verdict.summary


def test_a_driver_that_dies_before_its_first_report_is_lost_whatever_its_log_quotes(job: Job) -> None:  # B099
    message = (
        "Job entrypoint command failed with exit code -9, last available logs (truncated to 20,000 chars):\n"
        "2026-03-01 12:00:00,000 INFO job_manager.py:568 -- Runtime env is setting up.\n"
    )
    status = RayJobStatus(state=RayJobState.FAILED, message=message)
    action = reconcile(job, replace(SUBMITTED, has_reported=False), Seen(status=status), LIMITS)[0]
    assert isinstance(action, MarkLost)
    assert action.verdict.failure_class is FailureClass.DRIVER_LOST
    assert action.verdict.summary.endswith("exit code -9")


def test_a_driver_gets_its_grace_to_obey_and_is_stopped_after_it(job: Job) -> None:
    cancelled = job.evolve(desired="cancel")
    assert reconcile(cancelled, SUBMITTED, seen(RayJobState.RUNNING, seconds=29), LIMITS) == ()
    assert names(reconcile(cancelled, SUBMITTED, seen(RayJobState.RUNNING, seconds=31), LIMITS)) == [
        "StopRayJob"
    ]


def test_a_cancelled_generation_without_a_driver_is_stopped_at_once(job: Job) -> None:  # B103
    cancelled, pending = job.evolve(desired="cancel"), replace(SUBMITTED, has_reported=False)
    assert names(reconcile(cancelled, pending, seen(RayJobState.PENDING, seconds=0), LIMITS)) == [
        "StopRayJob"
    ]


def test_stop_is_not_asked_again_before_ray_can_have_obeyed(job: Job) -> None:
    cancelled = job.evolve(desired="cancel")
    again = seen(RayJobState.RUNNING, seconds_since_stop=3.0)
    assert reconcile(cancelled, SUBMITTED, again, LIMITS) == ()
    late = seen(RayJobState.RUNNING, seconds_since_stop=20.0)
    assert names(reconcile(cancelled, SUBMITTED, late, LIMITS)) == ["StopRayJob"]


@pytest.mark.parametrize("state", OVER)
def test_an_ended_generation_is_released_only_when_it_holds_nothing(
    job: Job, state: RayJobState
) -> None:  # B083
    held = seen(state, seconds=1.0 if state is not RayJobState.MISSING else 10.0, leftovers=("actor X",))
    assert reconcile(job, ENDED, held, LIMITS) == ()
    assert reconcile(job, ENDED, seen(state), LIMITS) == (MarkReleased(),)


def test_what_holds_on_after_the_end_is_stopped_again_and_named(job: Job) -> None:
    (action,) = reconcile(job, ENDED, seen(RayJobState.STOPPED, leftovers=("actor X",)), LIMITS)
    assert action == StopRayJob(reason="it still holds actor X")


def test_a_driver_that_lingers_after_its_last_word_is_stopped(job: Job) -> None:  # B083
    assert reconcile(job, ENDED, seen(RayJobState.RUNNING, seconds=5), LIMITS) == ()
    assert names(reconcile(job, ENDED, seen(RayJobState.RUNNING), LIMITS)) == ["StopRayJob"]


def test_the_driver_of_a_job_that_was_given_up_is_stopped_at_once(job: Job) -> None:
    given_up = job.evolve(state=JobState.FAILED)
    generation = replace(ENDED, final_phase=None)
    assert names(reconcile(given_up, generation, seen(RayJobState.RUNNING, seconds=0), LIMITS)) == [
        "StopRayJob"
    ]
