"""What the orchestrator has not acknowledged yet: all events, and per rank one sample that covers the rest. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from workers.contract.events import Event, Sample

BATCH_EVENTS: Final = 500  # in one report: a long silence is caught up over several


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Unacknowledged events in order of their sequence numbers, and samples by rank."""

    events: tuple[Event, ...] = ()
    samples: tuple[Sample, ...] = ()

    def with_event(self, event: Event) -> "Outbox":
        """Add an event."""
        return replace(self, events=(*self.events, event))

    def with_sample(self, sample: Sample) -> "Outbox":
        """Add a sample, merged with what waits of the same rank."""
        waiting = {s.rank: s for s in self.samples}
        old = waiting.get(sample.rank)
        waiting[sample.rank] = sample if old is None else merge(old, sample)
        return replace(self, samples=tuple(waiting[rank] for rank in sorted(waiting)))

    def batch(self) -> "Outbox":
        """What the next report carries."""
        return replace(self, events=self.events[:BATCH_EVENTS])

    def acknowledged(self, *, upto: int, sent: Sequence[Sample]) -> "Outbox":
        """Drop events up to that sequence number, and the samples that were sent and have not grown since."""
        return Outbox(
            events=tuple(e for e in self.events if e.sequence > upto),
            samples=tuple(s for s in self.samples if s not in sent),
        )


def merge(old: Sample, new: Sample) -> Sample:
    """One sample that covers both: sums where they count, the newest where they tell a state.

    Samples of different rounds are not merged: the steps between them were trained twice, and the newer one stands.
    """
    if (old.attempt, old.round) != (new.attempt, new.round):
        return new
    steps = old.steps + new.steps
    seconds = old.step_seconds * old.steps + new.step_seconds * new.steps
    return new.model_copy(
        update={
            "tokens": old.tokens + new.tokens,
            "steps": steps,
            "step_seconds": seconds / steps if steps else 0.0,
            "data_seconds": old.data_seconds + new.data_seconds,
            "checkpoint_stall_seconds": old.checkpoint_stall_seconds + new.checkpoint_stall_seconds,
            "first_index": old.first_index,
        }
    )
