"""What people ask of a job: cancel, pause, resume, retry. Each asks once; what does not apply changes nothing. Pure."""

from orchestrator.draft import Draft
from orchestrator.job import GenerationState, JobState
from orchestrator.job_inputs import CancelRequested, PauseRequested, ResumeRequested, RetryRequested
from workers.contract.events import EventKind


def cancel(draft: Draft, request: CancelRequested) -> None:
    """End the job; it is `cancelled` once it holds nothing any more."""
    job = draft.job
    if job.state.is_terminal or job.desired == "cancel":
        return
    whom = _whom(request)
    draft.change(desired="cancel", cancelled_by=whom, awaits_grant=False)
    if not job.holds_resources:
        draft.end(JobState.CANCELLED, f"cancelled by {whom}")
        return
    draft.change(reason=f"cancelling (by {whom}): its processes and reservations end first")
    draft.tell(EventKind.NOTE, f"cancel requested by {whom}")


def pause(draft: Draft, request: PauseRequested) -> None:
    """Let its ranks save what they have trained and leave; it is `paused` once it holds nothing any more."""
    job = draft.job
    if job.state.is_terminal or job.desired != "run":
        return
    draft.change(desired="pause", awaits_grant=False)
    state = JobState.DRAINING if job.holds_resources else JobState.PAUSED
    draft.to(state, f"paused by {_whom(request)}")


def resume(draft: Draft, request: ResumeRequested) -> None:
    """Put it back in the queue; where its ranks are still leaving, once they have left."""
    job = draft.job
    if job.state.is_terminal or job.desired != "pause":
        return
    draft.change(desired="run")
    whom = _whom(request)
    if job.current is not None and job.current.state is GenerationState.SUBMITTED:
        draft.change(reason=f"resumed by {whom}; its ranks save and leave first")
        draft.tell(EventKind.NOTE, f"resume requested by {whom}")
        return
    was_granted = job.current is not None and job.current.state is GenerationState.GRANTED
    draft.change(awaits_grant=not was_granted, delay_seconds=0.0)
    draft.to(JobState.STARTING if was_granted else JobState.QUEUED, f"resumed by {whom}")


def retry(draft: Draft, request: RetryRequested) -> None:
    """Give a job that failed or was cancelled its whole budget again; it goes on from its newest checkpoint."""
    job = draft.job
    if job.state not in (JobState.FAILED, JobState.CANCELLED):
        return
    spent = {"charged": 0, "uncharged": 0, "without_progress": 0, "in_a_row": 0}
    draft.change(
        desired="run",
        cancelled_by="",
        awaits_grant=True,
        delay_seconds=0.0,
        counters=job.counters.model_copy(update=spent),
        verdict=None,
        ended_at=None,
    )
    draft.to(JobState.QUEUED, f"retried by {_whom(request)}")


def _whom(request: CancelRequested | PauseRequested | ResumeRequested | RetryRequested) -> str:
    by = request.by or "the user"
    return f"{by}: {request.reason}" if request.reason else by
