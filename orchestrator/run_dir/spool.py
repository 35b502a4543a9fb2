"""A driver's own record of its events and of the loss: what it could not report while the service was away."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from workers.contract.events import Event, Sample
from workers.contract.rundir import events_dir, samples_dir

Line = TypeVar("Line", Event, Sample)

SAMPLE_SEGMENTS: Final = 200  # read at most: 200,000 lines, of all ranks together
_SEGMENT: Final = re.compile(r"g(\d+)-(\d+)\.jsonl")


def read_spool(run_dir: str, *, generation: int, after: int) -> tuple[Event, ...]:
    """Events of a generation with a sequence number above `after`, in order; a torn last line is left out."""
    mine = _segments(events_dir(run_dir), generation)
    events = {
        event.sequence: event
        for path in mine
        for event in _read(path, Event)
        if event.generation == generation
    }
    return tuple(events[sequence] for sequence in sorted(events) if sequence > after)


def read_samples(run_dir: str, *, generation: int, after: Sample | None) -> tuple[Sample, ...]:
    """Rank 0's samples of a generation that were measured after `after`, oldest first; the newest segments alone."""
    root = samples_dir(run_dir)
    found: list[Sample] = []
    for path in reversed(_segments(root, generation)[-SAMPLE_SEGMENTS:]):
        told = [sample for sample in _read(path, Sample) if sample.rank == 0]
        fresh = [sample for sample in told if after is None or _order(sample) > _order(after)]
        found[:0] = fresh
        if len(fresh) < len(told):
            break  # what is older is known
    return tuple(found)


def _order(sample: Sample) -> tuple[int, int, int]:
    return (sample.attempt, sample.round, sample.step)


def _segments(root: Path, generation: int) -> list[Path]:
    paths = sorted(root.iterdir()) if root.is_dir() else []
    return [p for p in paths if (named := _SEGMENT.fullmatch(p.name)) and int(named[1]) == generation]


def _read(path: Path, kind: type[Line]) -> Iterator[Line]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:  # deleted in between
        return
    for line in lines:
        try:
            yield kind.from_json(line)
        except ValidationError:
            continue
