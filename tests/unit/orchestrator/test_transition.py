"""Every state x every input."""

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.gang import Gang
from orchestrator.job import Generation, GenerationState, Job, JobState
from orchestrator.job_inputs import (
    Broken,
    CancelRequested,
    Granted,
    Input,
    Lost,
    PauseRequested,
    Released,
    Reported,
    ResumeRequested,
    RetryRequested,
    Submitted,
    Waits,
)
from orchestrator.transition import transition
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass
from workers.contract.report import Report
from workers.contract.restart import Counters

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)
GANG = Gang(workers=2, cpus_per_worker=1, gpus_per_worker=0)


def generation(state: GenerationState, number: int = 1) -> Generation:
    return Generation(number=number, gang=GANG, state=state, granted_at=NOW - timedelta(minutes=1))


@pytest.fixture
def jobs(make) -> dict[str, Job]:
    """A job in every situation that the control plane knows."""

    def having(state: JobState, held: GenerationState | None, **changes: object) -> Job:
        current = None if held is None else generation(held)
        awaits = changes.pop("awaits_grant", False)
        return make.job(state=state, current=current, awaits_grant=awaits, **changes)

    submitted, ended, released = GenerationState.SUBMITTED, GenerationState.ENDED, GenerationState.RELEASED
    return {
        "queued": having(JobState.QUEUED, None, awaits_grant=True),
        "granted": having(JobState.STARTING, GenerationState.GRANTED),
        "starting": having(JobState.STARTING, submitted),
        "running": having(JobState.RUNNING, submitted),
        "recovering": having(JobState.RECOVERING, submitted),
        "lost": having(JobState.RECOVERING, ended, awaits_grant=True),
        "to restart": having(JobState.RECOVERING, released, awaits_grant=True),
        "not placed": having(JobState.QUEUED, released, awaits_grant=True),
        "cancelling granted": having(JobState.STARTING, GenerationState.GRANTED, desired="cancel"),
        "cancelling": having(JobState.RUNNING, submitted, desired="cancel"),
        "cancelling ended": having(JobState.RUNNING, ended, desired="cancel"),
        "pausing granted": having(JobState.DRAINING, GenerationState.GRANTED, desired="pause"),
        "pausing": having(JobState.DRAINING, submitted, desired="pause", reason="paused by ada"),
        "pausing ended": having(JobState.DRAINING, ended, desired="pause", reason="paused by ada"),
        "paused": having(JobState.PAUSED, released, desired="pause"),
        "resumed too early": having(JobState.DRAINING, submitted),
        "succeeded": having(JobState.SUCCEEDED, ended),
        "failed": having(JobState.FAILED, ended),
        "failed released": having(JobState.FAILED, released),
        "cancelled": having(JobState.CANCELLED, released),
    }


@pytest.fixture
def inputs(make) -> dict[str, Input]:
    def reported(phase: str, number: int = 1, **more: object) -> Reported:
        told = {"job_id": "j1", "generation": number, "phase": phase, "step": 7, "world_size": 2}
        return Reported(report=Report.model_validate({**told, "counters": Counters(), **more}))

    return {
        "grant": Granted(gang=GANG),
        "wait": Waits(reason="waits for room"),
        "submit": Submitted(generation=1),
        "says starting": reported("starting"),
        "says running": reported("running"),
        "says recovering": reported("recovering"),
        "says finished": reported("finished", result=make.result()),
        "says failed": reported("failed", verdict=make.verdict()),
        "says stopped": reported("stopped"),
        "says not placed": reported("not_placed"),
        "says drained": reported("drained"),
        "old says running": reported("running", number=0),
        "loss": Lost(generation=1, verdict=make.verdict(FailureClass.DRIVER_LOST)),
        "old loss": Lost(generation=0, verdict=make.verdict(FailureClass.DRIVER_LOST)),
        "release": Released(generation=1),
        "cancel": CancelRequested(by="ada"),
        "pause": PauseRequested(by="ada"),
        "resume": ResumeRequested(by="ada"),
        "retry": RetryRequested(by="ada"),
        "break": Broken(reason="ValueError: x"),
    }


# situation -> input -> state afterwards; an input that is not named changes nothing but a reason.
CHANGES: dict[str, dict[str, JobState]] = {
    "queued": {
        "grant": JobState.STARTING,
        "cancel": JobState.CANCELLED,
        "pause": JobState.PAUSED,
        "break": JobState.FAILED,
    },
    "granted": {
        "pause": JobState.DRAINING,
        "says drained": JobState.QUEUED,
        "says running": JobState.RUNNING,
        "says recovering": JobState.RECOVERING,
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "says stopped": JobState.RECOVERING,
        "says not placed": JobState.QUEUED,
        "loss": JobState.RECOVERING,
        "break": JobState.FAILED,
    },
    "starting": {
        "pause": JobState.DRAINING,
        "says drained": JobState.QUEUED,
        "says running": JobState.RUNNING,
        "says recovering": JobState.RECOVERING,
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "says stopped": JobState.RECOVERING,
        "says not placed": JobState.QUEUED,
        "loss": JobState.RECOVERING,
        "break": JobState.FAILED,
    },
    "running": {
        "pause": JobState.DRAINING,
        "says drained": JobState.QUEUED,
        "says starting": JobState.RECOVERING,
        "says recovering": JobState.RECOVERING,
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "says stopped": JobState.RECOVERING,
        "says not placed": JobState.QUEUED,
        "loss": JobState.RECOVERING,
        "break": JobState.FAILED,
    },
    "recovering": {
        "pause": JobState.DRAINING,
        "says drained": JobState.QUEUED,
        "says running": JobState.RUNNING,
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "says not placed": JobState.QUEUED,
        "break": JobState.FAILED,
    },
    "lost": {"pause": JobState.DRAINING, "break": JobState.FAILED},
    "to restart": {"pause": JobState.PAUSED, "cancel": JobState.CANCELLED, "break": JobState.FAILED},
    "not placed": {
        "grant": JobState.STARTING,
        "cancel": JobState.CANCELLED,
        "pause": JobState.PAUSED,
        "break": JobState.FAILED,
    },
    "cancelling granted": {
        "release": JobState.CANCELLED,
        "says finished": JobState.SUCCEEDED,
        "break": JobState.FAILED,
    },
    "cancelling": {"says finished": JobState.SUCCEEDED, "break": JobState.FAILED},
    "cancelling ended": {"release": JobState.CANCELLED, "break": JobState.FAILED},
    "pausing granted": {
        "release": JobState.PAUSED,
        "resume": JobState.STARTING,
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "break": JobState.FAILED,
    },
    "pausing": {
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "break": JobState.FAILED,
    },
    "pausing ended": {"release": JobState.PAUSED, "resume": JobState.QUEUED, "break": JobState.FAILED},
    "paused": {"cancel": JobState.CANCELLED, "resume": JobState.QUEUED, "break": JobState.FAILED},
    "resumed too early": {
        "says drained": JobState.QUEUED,
        "says not placed": JobState.QUEUED,
        "says stopped": JobState.RECOVERING,
        "loss": JobState.RECOVERING,
        "says finished": JobState.SUCCEEDED,
        "says failed": JobState.FAILED,
        "break": JobState.FAILED,
    },
    "failed": {"retry": JobState.QUEUED},
    "failed released": {"retry": JobState.QUEUED},
    "cancelled": {"retry": JobState.QUEUED},
}


def test_every_input_in_every_situation_leads_where_the_table_says(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    for situation, job in jobs.items():
        for name, happened in inputs.items():
            after = transition(job, happened, now=NOW)
            expected = CHANGES.get(situation, {}).get(name, job.state)
            assert after.job.state is expected, (situation, name)
            is_told = any(e.kind is EventKind.STATE for e in after.events)
            assert is_told == (expected is not job.state), (situation, name)


def test_what_has_ended_changes_no_more_but_for_its_release(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    for situation in ("succeeded", "failed", "failed released", "cancelled"):
        for name, happened in inputs.items():
            after = transition(jobs[situation], happened, now=NOW).job
            if name == "release":
                assert not after.holds_resources
            elif name != "retry":
                assert after is jobs[situation], (situation, name)


def test_the_same_input_twice_changes_nothing_the_second_time(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    for situation, job in jobs.items():
        for name, happened in inputs.items():
            once = transition(job, happened, now=NOW).job
            if name == "grant" and once.generation != job.generation:
                assert once.holds_resources
            twice = transition(once, happened, now=NOW)
            assert twice.job == once, (situation, name)
            assert twice.events == (), (situation, name)


def test_there_is_never_a_second_generation_while_the_first_may_hold_something(
    jobs: dict[str, Job],
) -> None:  # B084
    for situation, job in jobs.items():
        granted = transition(job, Granted(gang=GANG), now=NOW).job
        if job.holds_resources:
            assert granted.generation == job.generation, situation


def test_a_cancelled_job_is_cancelled_only_when_nothing_is_held(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    for situation, job in jobs.items():
        for name, happened in inputs.items():
            after = transition(job, happened, now=NOW).job
            assert after.state is not JobState.CANCELLED or not after.holds_resources, (situation, name)


def test_cancel_says_by_whom_and_why(jobs: dict[str, Job]) -> None:  # B139
    request = CancelRequested(by="ada", reason="wrong data")
    assert transition(jobs["queued"], request, now=NOW).job.reason == "cancelled by ada: wrong data"
    cancelling = transition(jobs["running"], request, now=NOW).job
    assert cancelling.reason.startswith("cancelling (by ada: wrong data)")
    stopped = transition(cancelling, Reported(report=_stopped()), now=NOW).job
    ended = transition(stopped, Released(generation=1), now=NOW).job
    assert (ended.state, ended.reason) == (JobState.CANCELLED, "cancelled by ada: wrong data")


def _stopped() -> Report:
    return Report(job_id="j1", generation=1, phase="stopped", step=9, world_size=2, counters=Counters())


def test_a_failure_after_a_cancel_does_not_make_the_job_failed(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:  # B139
    after = transition(jobs["cancelling"], inputs["says failed"], now=NOW).job
    assert after.verdict is not None
    assert transition(after, Released(generation=1), now=NOW).job.state is JobState.CANCELLED


def test_a_lost_driver_is_charged_and_its_job_restarts(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    after = transition(jobs["running"], inputs["loss"], now=NOW)
    assert after.job.counters.charged == 1
    assert (after.job.awaits_grant, after.job.holds_resources) == (True, True)
    (restart,) = [e for e in after.events if e.kind is EventKind.RESTART]
    assert restart.data["reason"] == "driver_lost"


def test_drivers_that_are_lost_without_progress_end_the_job(make) -> None:  # B122
    job = make.job()
    delays = []
    for number in range(1, 10):
        job = transition(job, Granted(gang=GANG), now=NOW).job
        job = transition(job, Submitted(generation=number), now=NOW).job
        lost = Lost(generation=number, verdict=make.verdict(FailureClass.DRIVER_LOST))
        job = transition(job, lost, now=NOW).job
        if job.state.is_terminal:
            break
        delays.append(job.delay_seconds)
        job = transition(job, Released(generation=number), now=NOW).job
    assert job.state is JobState.FAILED
    assert "no progress since step 0" in job.reason
    assert delays == sorted(delays)
    assert delays[-1] > 0


def test_a_job_that_was_not_placed_waits_again_uncharged(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    after = transition(jobs["starting"], inputs["says not placed"], now=NOW).job
    assert (after.counters.charged, after.counters.uncharged, after.awaits_grant) == (0, 1, True)


def test_a_failed_job_tells_what_happened_and_why_it_was_not_tried_again(jobs: dict[str, Job], make) -> None:
    told = make.event(4, EventKind.FAILED, data={"reason": "user_code is not retried"})
    report = Report(
        job_id="j1",
        generation=1,
        phase="failed",
        step=7,
        world_size=2,
        counters=Counters(),
        verdict=make.verdict(),
        events=[told],
    )
    after = transition(jobs["running"], Reported(report=report), now=NOW).job
    assert after.reason == "user_code: rank 1 on n1: ValueError: marker-123; user_code is not retried"


def test_progress_is_kept_and_the_start_of_a_later_generation_does_not_take_it_back(
    jobs: dict[str, Job], inputs: dict[str, Input]
) -> None:
    job = transition(jobs["running"], inputs["says running"], now=NOW).job
    assert (job.step, job.furthest_step) == (7, 7)
    again = Report(job_id="j1", generation=1, phase="starting", step=0, world_size=2, counters=Counters())
    assert transition(job, Reported(report=again), now=NOW).job.step == 7


def test_a_generation_never_names_the_failure_of_an_older_one_as_its_own(jobs: dict[str, Job], make) -> None:
    """What made this generation begin is over once it has trained: its next failure is told when its driver tells it."""

    def recovering(**more: object) -> Reported:
        told = {"job_id": "j1", "generation": 1, "phase": "recovering", "step": 7, "world_size": 2}
        return Reported(report=Report.model_validate({**told, "counters": Counters(), **more}))

    old = make.verdict(FailureClass.DRIVER_LOST)
    job = transition(jobs["running"].evolve(verdict=old), recovering(), now=NOW).job
    assert (job.state, job.reason) == (JobState.RECOVERING, "")
    new = make.verdict(FailureClass.HANG).model_copy(update={"summary": "hang: rank 1 on n1 has not moved"})
    failed = make.event(4, EventKind.ROUND_FAILED, data={"verdict": new.model_dump(mode="json")})
    job = transition(job, recovering(events=[failed]), now=NOW).job
    assert (job.reason, job.verdict) == (new.summary, new)
    assert transition(job, recovering(), now=NOW).job.reason == new.summary, "until it runs again"
