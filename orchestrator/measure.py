"""`accept`: what a report's samples add to what is known. Pure; a report that comes twice adds nothing the second time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.job_queries import LossPoint
from workers.contract.events import Sample

Order = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What is new."""

    newest: tuple[Sample, ...] = ()  # at most one of each rank
    points: tuple[LossPoint, ...] = ()
    rewind_to: int | None = None  # the loss curve beyond this step is of an abandoned lineage
    tokens: int = 0


def accept(known: Mapping[int, tuple[int, Sample]], told: Sequence[Sample], *, generation: int) -> Accepted:
    """Take what is newer than what its rank said last; loss and tokens are global, so rank 0 alone speaks for them."""
    newest: dict[int, Sample] = {}
    fresh = [
        sample
        for sample in sorted(told, key=lambda sample: order(generation, sample))
        if sample.rank not in known or order(generation, sample) > order(*known[sample.rank])
    ]
    points: list[LossPoint] = []
    rewind_to: int | None = None
    tokens = 0
    before = known.get(0)
    for sample in fresh:
        newest[sample.rank] = sample
        if sample.rank != 0:
            continue
        first = sample.step - sample.steps
        if before is None or order(*before)[:3] != order(generation, sample)[:3]:
            points = [point for point in points if point.step <= first]
            rewind_to = first if rewind_to is None else min(rewind_to, first)
            tokens += sample.tokens
        else:
            tokens += _tokens_since(before[1], sample)
        points.append(LossPoint(step=sample.step, loss=sample.loss))
        before = (generation, sample)
    return Accepted(newest=tuple(newest.values()), points=tuple(points), rewind_to=rewind_to, tokens=tokens)


def order(generation: int, sample: Sample) -> Order:
    """Sort older before newer: by who measured, then by step."""
    return (generation, sample.attempt, sample.round, sample.step)


def _tokens_since(before: Sample, sample: Sample) -> int:
    """Return tokens trained since `before`; where samples between the two were not sent, at this one's rate."""
    steps = sample.step - before.step
    return sample.tokens if steps == sample.steps else round(sample.tokens * steps / max(1, sample.steps))


def of_newest_round(stored: Sequence[tuple[int, Sample]]) -> tuple[Sample, ...]:
    """Return the samples of the newest round alone: ranks of an older one are gone."""
    if not stored:
        return ()
    newest = max(order(*one)[:3] for one in stored)
    return tuple(sample for generation, sample in stored if order(generation, sample)[:3] == newest)
