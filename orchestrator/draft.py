"""A job in the making, and what came of it: what the functions of `transition` work on. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orchestrator.job import Job, JobState
from workers.contract.events import Event, EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The job afterwards, and the lines for its timeline. `job` is the very same value where nothing changed."""

    job: Job
    events: tuple[Event, ...] = ()


class Draft:
    """A job in the making; lives within one call of `transition`."""

    def __init__(self, job: Job, now: datetime) -> None:
        self.job = job
        self.now = now
        self._before = job
        self._events: list[Event] = []

    def change(self, **changes: Any) -> None:
        """Set values of the job."""
        self.job = replace(self.job, **changes)

    def generation(self, **changes: Any) -> None:
        """Set values of its newest generation."""
        self.job = self.job.with_generation(**changes)

    def tell(self, kind: EventKind, message: str, **data: Any) -> None:
        """Add a line to the timeline."""
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
        """Say what it waits for; its state stays."""
        if not self.job.state.is_terminal and self.job.desired == "run":
            self.change(reason=reason)

    def end(self, state: JobState, reason: str) -> None:
        """Move to a state that nothing follows."""
        assert state.is_terminal
        self.change(ended_at=self.now, awaits_grant=False)
        self.to(state, reason)

    def done(self) -> Transition:
        """Return what came of it."""
        if self.job == self._before:
            return Transition(job=self._before)
        return Transition(job=replace(self.job, updated_at=self.now), events=tuple(self._events))
