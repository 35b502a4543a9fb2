"""`reconcile`: what one open generation needs next, from what the store knows and what Ray shows. Pure.

An open generation is one that is not released. Every action may be repeated; a crash between any two of them is
repaired by asking again.
"""

from dataclasses import dataclass
from typing import Final

from orchestrator.cluster import RayJobState, RayJobStatus
from orchestrator.job import Generation, GenerationState, Job
from workers.contract.failure import FailureClass, Verdict

STOP_AGAIN_SECONDS: Final = 15.0  # Ray itself goes from SIGTERM to SIGKILL within 3 s
_LOGS_MARK: Final = (
    ", last available logs"  # where Ray's message on a driver turns into the driver's own output
)
_LOG_CHARS: Final = 2_000
_ENVIRONMENT_MARKS: Final = ("runtime_env", "runtime env", "runtime environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a condition may last before somebody acts on it, in seconds of a monotonic clock."""

    stop_grace: float
    missing_grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one tick saw of a generation."""

    status: RayJobStatus
    leftovers: tuple[str, ...] = ()  # what Ray still holds for it; asked only once its job is over
    seconds_in_phase: float = 0.0  # since this controller first saw `phase_of(...)` as it is now
    seconds_since_stop: float | None = None  # since it last asked Ray to stop the job; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRayJob:
    """Hand the generation to Ray, then mark it submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSubmitted:
    """Ray knows the job already: a crash came between the two writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRayJob:
    """End the driver, whatever it says."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLost:
    """The driver is gone without a last word."""

    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReleased:
    """Nothing of the generation is left in the cluster."""


Action = SubmitRayJob | MarkSubmitted | StopRayJob | MarkLost | MarkReleased


def phase_of(job: Job, generation: Generation, status: RayJobStatus, leftovers: tuple[str, ...]) -> str:
    """Name the condition whose duration counts; when the name changes, its clock begins anew."""
    wanted = "end" if _must_end(job, generation) else "run"
    held = "held" if leftovers else "free"
    return f"{generation.state.value}/{wanted}/{status.state.value}/{held}"


def reconcile(job: Job, generation: Generation, seen: Seen, limits: Limits) -> tuple[Action, ...]:
    """Return what to do now, in this order; () where there is nothing to do but to look again."""
    if generation.state is GenerationState.GRANTED:
        return _granted(job, generation, seen)
    if not seen.status.state.is_over:
        return _running(job, generation, seen, limits)
    if seen.status.state is RayJobState.MISSING and seen.seconds_in_phase < limits.missing_grace:
        return ()  # a head that restarts may forget for a moment
    is_lost = generation.state is GenerationState.SUBMITTED
    lost: tuple[Action, ...] = (
        (MarkLost(verdict=verdict_of(job, generation, seen.status)),) if is_lost else ()
    )
    if not seen.leftovers:
        return (*lost, MarkReleased())
    reason = f"it still holds {', '.join(seen.leftovers)}"
    return lost or _stop(seen, after=limits.stop_grace, reason=reason)


def _must_end(job: Job, generation: Generation) -> bool:
    is_unheard = job.desired == "pause" and not generation.has_reported  # nobody trains who could save
    is_over = job.state.is_terminal or generation.state is GenerationState.ENDED
    return job.desired == "cancel" or is_unheard or is_over


def _granted(job: Job, generation: Generation, seen: Seen) -> tuple[Action, ...]:
    if seen.status.state is not RayJobState.MISSING:
        return (MarkSubmitted(),)
    return (MarkReleased(),) if _must_end(job, generation) else (SubmitRayJob(),)


def _running(job: Job, generation: Generation, seen: Seen, limits: Limits) -> tuple[Action, ...]:
    if not _must_end(job, generation):
        return ()
    if generation.state is GenerationState.ENDED and generation.final_phase is None:
        return _stop(seen, after=0.0, reason="the job was given up")
    if not generation.has_reported and seen.status.state is RayJobState.PENDING:
        return _stop(seen, after=0.0, reason="there is no driver yet that could hear it")
    return _stop(seen, after=limits.stop_grace, reason="its driver did not end in time")


def _stop(seen: Seen, *, after: float, reason: str) -> tuple[Action, ...]:
    asked = seen.seconds_since_stop is not None and seen.seconds_since_stop < STOP_AGAIN_SECONDS
    return () if asked or seen.seconds_in_phase < after else (StopRayJob(reason=reason),)


def verdict_of(job: Job, generation: Generation, status: RayJobStatus) -> Verdict:
    """Say what became of a driver that ended without a last word."""
    said, _, logs = status.message.strip().partition(_LOGS_MARK)
    told = f": {said}" if said else ""
    # Only what Ray says itself: every driver's log begins with Ray's line that its runtime env is being set up.
    is_environment = any(mark in said.lower() for mark in _ENVIRONMENT_MARKS)
    if status.state is RayJobState.FAILED and not generation.has_reported and is_environment:
        failure_class = FailureClass.CONFIG
        what = f"the environment of generation {generation.number} cannot be built{told}"
    elif status.state is RayJobState.MISSING:
        failure_class = FailureClass.DRIVER_LOST
        what = f"Ray does not know generation {generation.number} any more: the cluster was replaced"
    else:
        failure_class = FailureClass.DRIVER_LOST
        what = f"the driver of generation {generation.number} ended as {status.state.value}{told}"
    return Verdict(
        failure_class=failure_class,
        summary=f"{failure_class.value}: {what}",
        step=job.step,
        evidence={"driver": logs[-_LOG_CHARS:]} if logs else {},
    )
