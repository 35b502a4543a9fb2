"""A job's timeline: one line an event, with the time since the first one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.pictures.style import columns, state_text
from orchestrator.cli.wording import (
    bytes_text,
    clock_text,
    count_text,
    harmless,
    offset_text,
    plural,
    seconds_text,
    without,
)
from workers.contract.events import Event, EventKind

WORD: Final = {
    EventKind.STATE: "state",
    EventKind.GRANTED: "granted",
    EventKind.DRIVER_STARTED: "driver",
    EventKind.ATTEMPT_STARTED: "attempt",
    EventKind.AGENTS_READY: "agents",
    EventKind.ROUND_STARTED: "round",
    EventKind.DATA_OPENED: "data",
    EventKind.FIRST_STEP: "first step",
    EventKind.CHECKPOINT_PUBLISHED: "saved",
    EventKind.CHECKPOINT_FAILED: "save failed",
    EventKind.CHECKPOINT_DAMAGED: "damaged",
    EventKind.CHECKPOINT_DELETED: "deleted",
    EventKind.EVALUATED: "evaluated",
    EventKind.ROUND_FAILED: "round failed",
    EventKind.ATTEMPT_FAILED: "attempt failed",
    EventKind.RESTART: "restart",
    EventKind.NOTE: "note",
    EventKind.EXPORTED: "exported",
    EventKind.FINISHED: "finished",
    EventKind.FAILED: "failed",
    EventKind.STOPPED: "stopped",
    EventKind.DRAINED: "left",
    EventKind.LOGS: "logs",
}
STYLE: Final = {
    EventKind.CHECKPOINT_FAILED: "red",
    EventKind.CHECKPOINT_DAMAGED: "red",
    EventKind.ROUND_FAILED: "red",
    EventKind.ATTEMPT_FAILED: "red",
    EventKind.FAILED: "red",
    EventKind.RESTART: "yellow",
    EventKind.STOPPED: "magenta",
    EventKind.DRAINED: "magenta",
    EventKind.FIRST_STEP: "green",
    EventKind.EVALUATED: "blue",
    EventKind.FINISHED: "green",
    EventKind.EXPORTED: "green",
}
ROUTINE: Final = frozenset({EventKind.CHECKPOINT_DELETED, EventKind.LOGS})  # told by `events`, not by a page
WORD_WIDTH: Final = max(len(word) for word in WORD.values())


def where_text(event: Event) -> str:
    """Name the process an event is about: `g0.a0.r1 rank 1`, as in log and checkpoint names."""
    text = f"g{event.generation}"
    if event.attempt is not None:
        text += f".a{event.attempt}"
    if event.round is not None:
        text += f".r{event.round}"
    return text if event.rank is None else f"{text} rank {event.rank}"


def word_of(event: Event) -> Text:
    """Name the kind of an event; of a change of state, the new state in its colour."""
    new = event.data.get("new")
    if event.kind is EventKind.STATE and isinstance(new, str):
        return state_text(new)
    return Text(WORD[event.kind], style=STYLE.get(event.kind, "cyan"))


def failure_of(event: Event, failure: str) -> str:
    """Return the newest failure's summary after `event`, given that before it: later lines need not repeat it."""
    return event.message if event.kind in (EventKind.ROUND_FAILED, EventKind.ATTEMPT_FAILED) else failure


def message_of(event: Event, failure: str = "") -> str:
    """Say what happened without what is on the screen already: the new state, or the summary `failure` above."""
    told, data = event.message, event.data
    match event.kind:
        case EventKind.STATE if data.get("reason"):
            told = without(failure, str(data["reason"]))
        case EventKind.STATE if data.get("new") and " -> " in told:
            told = ""  # the word before it says all
        case EventKind.RESTART | EventKind.FAILED:
            told = without(failure, told)
        case EventKind.EVALUATED if event.step is not None:
            told = f"step {count_text(event.step)}, {told}"
        case EventKind.CHECKPOINT_PUBLISHED if {"bytes", "stall_seconds"} <= data.keys():
            step = f"step {count_text(event.step)}, " if event.step is not None else ""
            stall = seconds_text(float(data["stall_seconds"]))
            told = f"{step}{bytes_text(int(data['bytes']))}; training stood still for {stall}"
        case _:
            pass
    return harmless(told)


def event_line(event: Event, failure: str = "") -> Text:
    """One event as a line of a stream: time of day, kind, message."""
    word = word_of(event)
    word.pad_right(WORD_WIDTH - len(word))
    return Text.assemble((clock_text(event.at), "dim"), "  ", word, "  ", message_of(event, failure))


def event_row(event: Event, failure: str = "") -> Table:
    """Draw the same for a terminal: a long message folds beside its kind, not under the time."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True, min_width=WORD_WIDTH)
    row.add_column(overflow="fold")
    row.add_row(Text(clock_text(event.at), style="dim"), word_of(event), Text(message_of(event, failure)))
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that whoever watches did, to be shown in its place among the events."""

    at: datetime
    word: str
    text: str


def timeline(
    events: Sequence[Event], *, since: datetime, limit: int | None = None, mark: Mark | None = None
) -> RenderableType:
    """The newest `limit` events that are not routine, oldest first; `since` is second 0."""
    told = [event for event in events if event.kind not in ROUTINE]
    first = 0 if limit is None else max(0, len(told) - limit)
    table = columns("AFTER", "EVENT", "WHAT HAPPENED", right=["AFTER"], wrap=["WHAT HAPPENED"])
    failure = ""
    for event in told[:first]:
        failure = failure_of(event, failure)
    for event in told[first:]:
        if mark is not None and event.at > mark.at:
            table.add_row(_after(mark.at, since), Text(mark.word, style="bold red"), Text(mark.text))
            mark = None
        table.add_row(_after(event.at, since), word_of(event), Text(message_of(event, failure)))
        failure = failure_of(event, failure)
    return Group(Text(f"... {plural(first, 'earlier event')}", style="dim"), table) if first else table


def _after(moment: datetime, since: datetime) -> Text:
    return Text(offset_text((moment - since).total_seconds()), style="dim")


def event_table(events: Sequence[Event]) -> Table:
    """Every event as it was told, with its time of day and place, for `shardyard events`."""
    table = columns("TIME", "WHERE", "EVENT", "WHAT HAPPENED", wrap=["WHAT HAPPENED"])
    for event in events:
        table.add_row(
            Text(clock_text(event.at), style="dim"),
            Text(where_text(event), style="dim"),
            word_of(event),
            Text(message_of(event)),
        )
    return table
