"""What drivers say, taken into the store: from reports, and from the spool of a driver that could not report."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from orchestrator.draft import Transition
from orchestrator.job import Job, JobState
from orchestrator.job_inputs import Reported
from orchestrator.measure import accept
from orchestrator.store import Store, Unit
from orchestrator.transition import transition
from workers.contract.base import Message
from workers.contract.events import Event, EventKind, JobResult, Sample
from workers.contract.failure import FailureClass, Verdict
from workers.contract.report import Desired, Phase, Report


def token_digest(token: str) -> str:
    """Return what is stored of a report token."""
    return hashlib.sha256(token.encode()).hexdigest()


def take_report(store: Store, job_id: str, report: Report, *, now: datetime) -> tuple[Job, int]:
    """Store a report's events and samples and move the job; return it, and the highest stored sequence number."""
    with store.unit(job_id) as unit:
        if not 1 <= report.generation <= unit.job.generation:
            return unit.job, -1
        acknowledged = unit.add_driver_events(report.generation, report.events)
        is_current = report.generation == unit.job.generation
        tokens = _take_samples(unit, report.samples, generation=report.generation) if is_current else 0
        change = transition(unit.job, Reported(report=report), now=now)
        if tokens:
            change = Transition(
                job=change.job.evolve(tokens=change.job.tokens + tokens), events=change.events
            )
        return unit.save(change), acknowledged


def _take_samples(unit: Unit, told: Sequence[Sample], *, generation: int) -> int:
    """Store samples and their points of the loss curve; return how many tokens they add."""
    if not told:
        return 0
    accepted = accept(unit.samples(), told, generation=generation)
    unit.put_samples(generation, accepted.newest)
    unit.put_losses(accepted.points, rewind_to=accepted.rewind_to)
    return accepted.tokens


def answer(job: Job, generation: int, *, acknowledged: int) -> Desired:
    """Say what the driver of `generation` shall do; the same until it changes."""
    if generation != job.generation:
        action, reason = "stop", f"generation {job.generation} has taken over"
    elif job.desired == "cancel":
        action, reason = "stop", f"cancelled by {job.cancelled_by}"
    elif job.state.is_terminal:
        action, reason = "stop", f"the job has {job.state.value}: {job.reason}"
    elif job.current is not None and not job.current.is_awaited:
        action, reason = "stop", f"generation {generation} was given up: {job.reason}"
    elif (
        job.state is JobState.DRAINING
    ):  # also where somebody has resumed it meanwhile: its ranks are leaving
        action, reason = "drain", job.reason
    else:
        action, reason = "run", ""
    return Desired.model_validate(
        {"generation": job.generation, "action": action, "reason": reason, "acknowledged": acknowledged}
    )


_LAST_WORDS: dict[EventKind, Phase] = {
    EventKind.FINISHED: "finished",
    EventKind.FAILED: "failed",
    EventKind.STOPPED: "stopped",
}


def take_spool(
    store: Store, job: Job, spooled: Sequence[Event], *, samples: Sequence[Sample] = (), now: datetime
) -> None:
    """Take what a driver wrote down and did not report; its last word counts as if it had been said in time."""
    assert job.current is not None
    last = next((event for event in reversed(spooled) if event.kind in _LAST_WORDS), None)
    if last is None:
        with store.unit(job.id) as unit:
            unit.add_driver_events(job.generation, spooled)
            tokens = _take_samples(unit, samples, generation=job.generation)
            if tokens:
                unit.save(Transition(job=unit.job.evolve(tokens=unit.job.tokens + tokens)))
        return
    report = report_of(job, last, spooled).model_copy(update={"samples": samples})
    take_report(store, job.id, report, now=now)


def report_of(job: Job, last: Event, spooled: Sequence[Event]) -> Report:
    """Make the report that the driver would have sent last."""
    result = _read(JobResult, last.data, "result") if last.kind is EventKind.FINISHED else None
    verdict = _read(Verdict, last.data, "verdict") if last.kind is EventKind.FAILED else None
    if last.kind is EventKind.FAILED and verdict is None:
        verdict = Verdict(failure_class=FailureClass.INTERNAL, summary=last.message)
    return Report(
        job_id=job.id,
        generation=last.generation,
        phase=_LAST_WORDS[last.kind],
        step=result.final_step if result else (last.step if last.step is not None else job.step),
        world_size=job.world_size,
        counters=job.counters,
        events=spooled,
        verdict=verdict,
        result=result,
    )


Told = TypeVar("Told", bound=Message)


def _read(kind: type[Told], data: Mapping[str, Any], key: str) -> Told | None:
    """Read a value that an event carries, under its key or as its whole data; None where it carries none."""
    try:
        return kind.model_validate(data.get(key, data))
    except ValidationError:
        return None
