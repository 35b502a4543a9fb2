"""A job's timeline: one line an event, with the time since the first one."""

from collections.abc import Iterator, Sequence
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
ROUTINE: Final = frozenset({EventKind.CHECKPOINT_DELETED, EventKind.LOGS})
REPEATED: Final = frozenset({EventKind.FINISHED, EventKind.FAILED})  # by the state that follows
REPEATS: Final = frozenset({"starting", "running"})  # states: `granted` and `first step` say the same
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
    is_failure = event.kind in (EventKind.ROUND_FAILED, EventKind.ATTEMPT_FAILED)
    is_known = bool(failure) and event.message.startswith(failure)
    is_news = event.kind is EventKind.RESTART and not is_known  # of a driver that could not say it itself
    return event.message if is_failure or is_news else failure


def is_left_out(event: Event, failure: str = "") -> bool:
    """Whether a page or a stream leaves an event out, for it is routine or a line beside it says the same.

    `failure` is what `failure_of` says of those before it. `shardyard events` tells all of them.
    """
    if event.kind is not EventKind.STATE:
        return event.kind in ROUTINE | REPEATED
    new, reason = event.data.get("new"), str(event.data.get("reason") or "")
    return new in REPEATS or (new == "recovering" and reason in ("", failure))


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
    """The newest `limit` rows of what a page tells, oldest first; `since` is second 0. Saves in a row are one row."""
    rows = list(_rows(events, mark))
    first = 0 if limit is None else max(0, len(rows) - limit)
    table = columns("AFTER", "EVENT", "WHAT HAPPENED", right=["AFTER"], wrap=["WHAT HAPPENED"])
    for row in rows[first:]:
        if mark is not None and row.events[-1].at > mark.at:
            table.add_row(_after(mark.at, since), Text(mark.word, style="bold red"), Text(mark.text))
            mark = None
        table.add_row(_after(row.events[-1].at, since), word_of(row.events[-1]), Text(row.text))
    earlier = sum(len(row.events) for row in rows[:first])
    return Group(Text(f"... {plural(earlier, 'earlier event')}", style="dim"), table) if earlier else table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row, and the events that it tells."""

    events: tuple[Event, ...]
    text: str


def _rows(events: Sequence[Event], mark: Mark | None) -> Iterator[_Row]:
    saves: tuple[Event, ...] = ()
    failure = ""
    for event in events:
        if is_left_out(event, failure):
            continue
        is_save = event.kind is EventKind.CHECKPOINT_PUBLISHED
        is_parted = mark is not None and bool(saves) and saves[-1].at <= mark.at < event.at
        if saves and (not is_save or is_parted):
            yield _Row(events=saves, text=_saves_text(saves))
            saves = ()
        if is_save:
            saves += (event,)
        else:
            yield _Row(events=(event,), text=message_of(event, failure))
        failure = failure_of(event, failure)
    if saves:
        yield _Row(events=saves, text=_saves_text(saves))


def _saves_text(saves: Sequence[Event]) -> str:
    """Say of several checkpoints what `message_of` says of one."""
    if len(saves) == 1:
        return message_of(saves[0])
    steps = [event.step for event in saves if event.step is not None]
    told = f"steps {count_text(steps[0])} to {count_text(steps[-1])}, " if steps else ""
    stall = sum(float(event.data.get("stall_seconds", 0.0)) for event in saves)
    return f"{told}{plural(len(saves), 'checkpoint')}; training stood still for {seconds_text(stall)} in all"


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
