"""`transition`: how a job changes. One pure function of the job, what happened, and the time to write into the timeline.

Inputs may come twice, late, or from an older generation: what does not apply any more changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, assert_never

from pydantic import ValidationError

from orchestrator.job import Generation, GenerationState, Job, JobState
from orchestrator.job_inputs import (
    Broken,
    CancelRequested,
    Granted,
    Input,
    Lost,
    Released,
    Reported,
    Submitted,
    Waits,
)
from workers.contract.events import Event, EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.contract.report import Phase, Report
from workers.contract.restart import Action, Restart, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The job afterwards, and the lines for its timeline. `job` is the very same value where nothing changed."""

    job: Job
    events: tuple[Event, ...] = ()


_LIVE_PHASES: Final[Mapping[Phase, JobState]] = {
    "starting": JobState.STARTING,
    "running": JobState.RUNNING,
    "recovering": JobState.RECOVERING,
}


def transition(job: Job, happened: Input, *, now: datetime) -> Transition:
    """Return what `happened` makes of `job`; the store raises `version`, nobody else does."""
    draft = _Draft(job, now)
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
            _cancel(draft, happened)
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


def _granted(draft: "_Draft", grant: Granted) -> None:
    job = draft.job
    if not job.awaits_grant or job.state.is_terminal or job.desired == "cancel" or job.holds_resources:
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


def _reported(draft: "_Draft", report: Report) -> None:
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
            if job.desired == "run":
                draft.end(JobState.FAILED, _why_failed(report))
        case "not_placed":
            verdict = report.verdict or _verdict(FailureClass.NOT_PLACED, "the cluster had no room in time")
            _restart(draft, verdict, back_to=JobState.QUEUED)
        case _:
            verdict = _verdict(
                FailureClass.DRIVER_LOST, f"generation {report.generation} was stopped from outside"
            )
            _restart(draft, verdict, back_to=JobState.RECOVERING)


def _why_failed(report: Report) -> str:
    """What happened, and why the driver did not try again."""
    summary = report.verdict.summary if report.verdict else "failed, and the driver gives no reason"
    told = (event.data.get("reason") for event in report.events if event.kind is EventKind.FAILED)
    decision = next((reason for reason in told if isinstance(reason, str) and reason), "")
    return f"{summary}; {decision}" if decision else summary


def _verdict(failure_class: FailureClass, summary: str) -> Verdict:
    return Verdict(failure_class=failure_class, summary=f"{failure_class.value}: {summary}")


def _live(draft: "_Draft", report: Report, state: JobState) -> None:
    job = draft.job
    if job.desired == "cancel":
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


def _restart(draft: "_Draft", verdict: Verdict, *, back_to: JobState) -> None:
    """Decide what follows a generation that ended without an end of the job."""
    job = draft.job
    draft.change(verdict=verdict)
    if job.desired == "cancel":
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


def _released(draft: "_Draft", number: int) -> None:
    job = draft.job
    never_started = job.desired == "cancel" and _is_current(job, number, GenerationState.GRANTED)
    if not never_started and not _is_current(job, number, GenerationState.ENDED):
        return
    draft.generation(state=GenerationState.RELEASED)
    if not job.state.is_terminal and job.desired == "cancel":
        draft.end(JobState.CANCELLED, f"cancelled by {job.cancelled_by}")


def _cancel(draft: "_Draft", request: CancelRequested) -> None:
    job = draft.job
    if job.state.is_terminal or job.desired == "cancel":
        return
    by = request.by or "the user"
    whom = f"{by}: {request.reason}" if request.reason else by
    draft.change(desired="cancel", cancelled_by=whom, awaits_grant=False)
    if not job.holds_resources:
        draft.end(JobState.CANCELLED, f"cancelled by {whom}")
        return
    draft.change(reason=f"cancelling (by {whom}): its processes and reservations end first")
    draft.tell(EventKind.NOTE, f"cancel requested by {whom}")


class _Draft:
    """A job in the making; lives within one call of `transition`."""

    def __init__(self, job: Job, now: datetime) -> None:
        self.job = job
        self.now = now
        self._before = job
        self._events: list[Event] = []

    def change(self, **changes: Any) -> None:
        self.job = replace(self.job, **changes)

    def generation(self, **changes: Any) -> None:
        self.job = self.job.with_generation(**changes)

    def tell(self, kind: EventKind, message: str, **data: Any) -> None:
        event = Event(
            kind=kind,
            generation=self.job.generation,
            sequence=self.job.next_sequence,
            at=self.now,
            message=message,
            step=self.job.step,
            data=data,
        )
        self._events.append(event)
        self.change(next_sequence=self.job.next_sequence + 1)

    def to(self, state: JobState, reason: str) -> None:
        """Move to `state` and tell so; staying where one is is no news."""
        old = self.job.state
        self.change(state=state, reason=reason)
        if old is not state:
            message = f"{old.value} -> {state.value}" + (f": {reason}" if reason else "")
            self.tell(EventKind.STATE, message, old=old.value, new=state.value, reason=reason)

    def wait(self, reason: str) -> None:
        if not self.job.state.is_terminal and self.job.desired == "run":
            self.change(reason=reason)

    def end(self, state: JobState, reason: str) -> None:
        assert state.is_terminal
        self.change(ended_at=self.now, awaits_grant=False)
        self.to(state, reason)

    def done(self) -> Transition:
        if self.job == self._before:
            return Transition(job=self._before)
        return Transition(job=replace(self.job, updated_at=self.now), events=tuple(self._events))
