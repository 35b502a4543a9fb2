"""`transition`: how a job changes. One pure function of the job, what happened, and the time to write into the timeline.

Inputs may come twice, late, or from an older generation: what does not apply any more changes nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, assert_never

from pydantic import ValidationError

from orchestrator.draft import Draft, Transition
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
from orchestrator.wishes import cancel, pause, resume, retry
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.contract.report import Phase, Report
from workers.contract.restart import Action, Restart, decide

_LIVE_PHASES: Final[Mapping[Phase, JobState]] = {
    "starting": JobState.STARTING,
    "running": JobState.RUNNING,
    "recovering": JobState.RECOVERING,
}


def transition(job: Job, happened: Input, *, now: datetime) -> Transition:
    """Return what `happened` makes of `job`; the store raises `version`, nobody else does."""
    draft = Draft(job, now)
    match happened:
        case Granted():
            _granted(draft, happened)
        case Waits():
            if job.awaits_grant or _is_current(job, job.generation, GenerationState.GRANTED):
                draft.wait(happened.reason)
        case Submitted():
            if _is_current(job, happened.generation, GenerationState.GRANTED):
                draft.generation(state=GenerationState.SUBMITTED)
                draft.wait(_starts(draft.job.current))  # Ray may have refused it before: the job said so
        case Reported():
            _reported(draft, happened.report)
        case Lost():
            if _is_open(job, happened.generation):
                draft.generation(state=GenerationState.ENDED)
                _restart(draft, happened.verdict, back_to=JobState.RECOVERING)
        case Released():
            _released(draft, happened.generation)
        case CancelRequested():
            cancel(draft, happened)
        case PauseRequested():
            pause(draft, happened)
        case ResumeRequested():
            resume(draft, happened)
        case RetryRequested():
            retry(draft, happened)
        case Broken():
            if not job.state.is_terminal:
                if job.holds_resources:
                    draft.generation(state=GenerationState.ENDED)
                draft.end(JobState.FAILED, f"orchestrator error: {happened.reason}")
        case _:
            assert_never(happened)
    return draft.done()


def _is_current(job: Job, number: int, *states: GenerationState) -> bool:
    return job.current is not None and job.current.number == number and job.current.state in states


def _is_open(job: Job, number: int) -> bool:
    """The generation is the newest one, and more is expected of it."""
    return job.current is not None and job.current.number == number and job.current.is_awaited


def _granted(draft: Draft, grant: Granted) -> None:
    job = draft.job
    if not job.awaits_grant or job.state.is_terminal or job.desired != "run" or job.holds_resources:
        return
    number = job.generation + 1
    gang = grant.gang
    draft.change(
        awaits_grant=False,
        delay_seconds=0.0,
        started_at=job.started_at or draft.now,
        current=Generation(number=number, gang=gang, granted_at=draft.now),
    )
    draft.tell(EventKind.GRANTED, f"generation {number} gets {gang}", world_size=gang.workers)
    state = JobState.STARTING if job.state is JobState.QUEUED else job.state
    draft.to(state, _starts(draft.job.current))


def _starts(generation: Generation | None) -> str:
    assert generation is not None
    return f"generation {generation.number} starts with {generation.gang}"


def _reported(draft: Draft, report: Report) -> None:
    job = draft.job
    if job.state.is_terminal or not _is_open(job, report.generation):
        return
    draft.generation(state=GenerationState.SUBMITTED, has_reported=True)
    draft.change(
        step=job.step if report.phase == "starting" else report.step,
        furthest_step=max(job.furthest_step, report.step),
        counters=report.counters,
        verdict=report.verdict or _newest_verdict(report) or job.verdict,
    )
    if report.phase in _LIVE_PHASES:
        _live(draft, report, _LIVE_PHASES[report.phase])
        return
    draft.generation(state=GenerationState.ENDED, final_phase=report.phase)
    match report.phase:
        case "finished":
            draft.change(result=report.result)
            draft.end(JobState.SUCCEEDED, f"finished at step {report.step}")
        case "failed":
            if job.desired != "cancel":
                draft.end(JobState.FAILED, _why_failed(report))
        case "not_placed":
            verdict = report.verdict or _verdict(FailureClass.NOT_PLACED, "the cluster had no room in time")
            _restart(draft, verdict, back_to=JobState.QUEUED)
        case "drained":
            _drained(draft)
        case _:
            verdict = _verdict(
                FailureClass.DRIVER_LOST, f"generation {report.generation} was stopped from outside"
            )
            _restart(draft, verdict, back_to=JobState.RECOVERING)


def _drained(draft: Draft) -> None:
    """Its ranks saved and left because somebody paused the job, who may have changed their mind since."""
    if draft.job.desired == "run":
        draft.change(awaits_grant=True, delay_seconds=0.0)
        draft.to(JobState.QUEUED, "resumed while its ranks were leaving")


def _why_failed(report: Report) -> str:
    """What happened, and why the driver did not try again."""
    summary = report.verdict.summary if report.verdict else "failed, and the driver gives no reason"
    told = (event.data.get("reason") for event in report.events if event.kind is EventKind.FAILED)
    decision = next((reason for reason in told if isinstance(reason, str) and reason), "")
    return f"{summary}; {decision}" if decision else summary


def _verdict(failure_class: FailureClass, summary: str) -> Verdict:
    return Verdict(failure_class=failure_class, summary=f"{failure_class.value}: {summary}")


def _live(draft: Draft, report: Report, state: JobState) -> None:
    job = draft.job
    if job.desired == "cancel" or job.state is JobState.DRAINING:
        return  # the reason says already what it waits for
    if state is JobState.STARTING and job.state is not JobState.STARTING:
        state = JobState.RECOVERING  # a later generation's start is part of a recovery
    reason = ""
    if (
        state is JobState.RECOVERING
    ):  # from what its own driver told last, else from what made the generation begin
        told = _newest_verdict(report)
        reason = told.summary if told else (job.reason if job.state is state else "")
    draft.to(state, reason)


def _newest_verdict(report: Report) -> Verdict | None:
    """The verdict on the newest round or attempt that failed, as far as this report tells of one."""
    failures = (EventKind.ROUND_FAILED, EventKind.ATTEMPT_FAILED)
    told = [event for event in report.events if event.kind in failures]
    try:
        return Verdict.model_validate(told[-1].data.get("verdict")) if told else None
    except ValidationError:  # of another version
        return None


def _restart(draft: Draft, verdict: Verdict, *, back_to: JobState) -> None:
    """Decide what follows a generation that ended without an end of the job."""
    job = draft.job
    draft.change(verdict=verdict)
    if job.desired != "run":
        return
    restart = decide(
        verdict=verdict,
        counters=job.counters,
        reached_step=job.furthest_step,
        max_failures=job.spec.failure.max_failures,
    )
    draft.change(counters=restart.counters)
    if restart.action is Action.FAIL:
        draft.end(JobState.FAILED, f"{verdict.summary}; {restart.reason}")
        return
    draft.change(awaits_grant=True, delay_seconds=restart.delay_seconds)
    draft.tell(EventKind.RESTART, restart.reason, **_restart_data(restart, verdict))
    draft.to(back_to, restart.reason)


def _restart_data(restart: Restart, verdict: Verdict) -> Mapping[str, Any]:
    return {
        "action": restart.action.value,
        "reason": verdict.failure_class.value,
        "charged": restart.charged,
        "delay_seconds": restart.delay_seconds,
        "counters": restart.counters.model_dump(),
    }


def _released(draft: Draft, number: int) -> None:
    job = draft.job
    never_started = job.desired != "run" and _is_current(job, number, GenerationState.GRANTED)
    if not never_started and not _is_current(job, number, GenerationState.ENDED):
        return
    draft.generation(state=GenerationState.RELEASED)
    if not job.state.is_terminal and job.desired == "cancel":
        draft.end(JobState.CANCELLED, f"cancelled by {job.cancelled_by}")
    if not job.state.is_terminal and job.desired == "pause":
        draft.to(JobState.PAUSED, job.reason)
