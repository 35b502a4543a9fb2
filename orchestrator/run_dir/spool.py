"""A driver's own record of its events: what it could not report while the service was away."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from workers.contract.events import Event
from workers.contract.rundir import events_dir

_SEGMENT: Final = re.compile(r"g(\d+)-(\d+)\.jsonl")


def read_spool(run_dir: str, *, generation: int, after: int) -> tuple[Event, ...]:
    """Events of a generation with a sequence number above `after`, in order; a torn last line is left out."""
    root = events_dir(run_dir)
    paths = sorted(root.iterdir()) if root.is_dir() else []
    mine = (
        path for path in paths if (found := _SEGMENT.fullmatch(path.name)) and int(found[1]) == generation
    )
    events = {
        event.sequence: event for path in mine for event in _read(path) if event.generation == generation
    }
    return tuple(events[sequence] for sequence in sorted(events) if sequence > after)


def _read(path: Path) -> Iterator[Event]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:  # deleted in between
        return
    for line in lines:
        try:
            yield Event.from_json(line)
        except ValidationError:
            continue
