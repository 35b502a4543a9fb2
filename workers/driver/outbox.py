"""What the orchestrator has not acknowledged yet: all events, per rank one sample that covers the rest, and the curve of
the first rank, whose loss is that of all. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from workers.contract.events import Event, Sample

BATCH_EVENTS: Final = 500  # in one report: a long silence is caught up over several
CURVE_POINTS: Final = 200  # of a long silence; a longer one is told in coarser points


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Unacknowledged events in order of their sequence numbers, and samples by rank, then by age."""

    events: tuple[Event, ...] = ()
    samples: tuple[Sample, ...] = ()

    def with_event(self, event: Event) -> "Outbox":
        """Add an event."""
        return replace(self, events=(*self.events, event))

    def with_sample(self, sample: Sample) -> "Outbox":
        """Add a sample: of the first rank to its curve, of another merged with what waits of it."""
        others = [waiting for waiting in self.samples if waiting.rank != sample.rank]
        own = [waiting for waiting in self.samples if waiting.rank == sample.rank]
        is_curve = sample.rank == 0
        own = thinned([*own, sample]) if is_curve else [merge(own[-1], sample) if own else sample]
        return replace(self, samples=tuple(sorted([*others, *own], key=lambda one: one.rank)))

    def batch(self) -> "Outbox":
        """What the next report carries."""
        return replace(self, events=self.events[:BATCH_EVENTS])

    def acknowledged(self, *, upto: int, sent: Sequence[Sample]) -> "Outbox":
        """Drop events up to that sequence number, and the samples that were sent and have not grown since."""
        return Outbox(
            events=tuple(e for e in self.events if e.sequence > upto),
            samples=tuple(s for s in self.samples if s not in sent),
        )


def thinned(curve: Sequence[Sample]) -> list[Sample]:
    """Return a curve of at most CURVE_POINTS samples: of a longer one, each two neighbours merged."""
    if len(curve) <= CURVE_POINTS:
        return list(curve)
    *pairs, last = [curve[i : i + 2] for i in range(0, len(curve), 2)]
    return [merge(*pair) for pair in pairs] + [merge(*last) if len(last) > 1 else last[0]]


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
