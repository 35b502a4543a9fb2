"""What the orchestrator has not acknowledged yet: all events, the loss curve, and one sample of every rank. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from workers.contract.events import Event, Sample

BATCH_EVENTS: Final = 500  # in one report: a long silence is caught up over several
BATCH_SAMPLES: Final = 500
CURVE_SAMPLES: Final = 2000  # kept of rank 0, which alone speaks for the loss; above, neighbours are merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one report carries."""

    events: tuple[Event, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Unacknowledged events in order of their sequence numbers, and samples."""

    events: tuple[Event, ...] = ()
    curve: tuple[Sample, ...] = ()  # rank 0's, oldest first
    others: tuple[Sample, ...] = ()  # one of each other rank, which covers all that wait

    def with_event(self, event: Event) -> "Outbox":
        """Add an event."""
        return replace(self, events=(*self.events, event))

    def with_sample(self, sample: Sample) -> "Outbox":
        """Add a sample."""
        if sample.rank == 0:
            return replace(self, curve=thinned((*self.curve, sample)))
        waiting = {s.rank: s for s in self.others}
        old = waiting.get(sample.rank)
        waiting[sample.rank] = sample if old is None else merge(old, sample)
        return replace(self, others=tuple(waiting[rank] for rank in sorted(waiting)))

    @property
    def is_long(self) -> bool:
        """Whether one report cannot carry all of it."""
        return len(self.events) > BATCH_EVENTS or len(self.curve) > BATCH_SAMPLES

    def batch(self) -> Batch:
        """What the next report carries: the oldest first."""
        return Batch(events=self.events[:BATCH_EVENTS], samples=(*self.curve[:BATCH_SAMPLES], *self.others))

    def acknowledged(self, *, upto: int, sent: Sequence[Sample]) -> "Outbox":
        """Drop events up to that sequence number, and the samples that were sent and have not grown since."""
        gone = {id(sample) for sample in sent}
        return Outbox(
            events=tuple(e for e in self.events if e.sequence > upto),
            curve=tuple(s for s in self.curve if id(s) not in gone),
            others=tuple(s for s in self.others if id(s) not in gone),
        )


def thinned(curve: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Halve a curve that has grown too long: its older neighbours become one sample each, the newest half stays."""
    if len(curve) <= CURVE_SAMPLES:
        return curve
    half = CURVE_SAMPLES // 2
    old, new = curve[:half], curve[half:]
    pairs = zip(old[::2], old[1::2], strict=True)
    return (*(one for first, second in pairs for one in _merged(first, second)), *new)


def _merged(first: Sample, second: Sample) -> tuple[Sample, ...]:
    is_same = (first.attempt, first.round) == (second.attempt, second.round)
    return (merge(first, second),) if is_same else (first, second)


def merge(old: Sample, new: Sample) -> Sample:
    """One sample that covers both: sums where they count, the newest where they tell a state.

    Samples of different rounds are not merged: the steps between them were trained twice, and the newer one stands.
    """
    if (old.attempt, old.round) != (new.attempt, new.round):
        return new
    steps = old.steps + new.steps

    def mean(before: float, after: float) -> float:
        return (before * old.steps + after * new.steps) / steps if steps else 0.0

    return new.model_copy(
        update={
            "tokens": old.tokens + new.tokens,
            "steps": steps,
            "step_seconds": mean(old.step_seconds, new.step_seconds),
            "data_seconds": mean(old.data_seconds, new.data_seconds),
            "checkpoint_stall_seconds": old.checkpoint_stall_seconds + new.checkpoint_stall_seconds,
            "first_index": old.first_index,
        }
    )
