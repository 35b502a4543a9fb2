"""A job's timeline: one line an event, with the time since the first one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.pictures.style import columns
from orchestrator.cli.wording import clock_text, harmless, offset_text, plural
from workers.contract.events import Event, EventKind

WORD: Final = {
    EventKind.STATE: "state",
    EventKind.GRANTED: "granted",
    EventKind.DRIVER_STARTED: "driver",
    EventKind.ATTEMPT_STARTED: "attempt",
    EventKind.AGENTS_READY: "agents",
    EventKind.ROUND_STARTED: "round",
    EventKind.FIRST_STEP: "first step",
    EventKind.CHECKPOINT_PUBLISHED: "saved",
    EventKind.CHECKPOINT_FAILED: "save failed",
    EventKind.CHECKPOINT_DAMAGED: "damaged",
    EventKind.CHECKPOINT_DELETED: "deleted",
    EventKind.ROUND_FAILED: "round failed",
    EventKind.ATTEMPT_FAILED: "attempt failed",
    EventKind.RESTART: "restart",
    EventKind.NOTE: "note",
    EventKind.EXPORTED: "exported",
    EventKind.FINISHED: "finished",
    EventKind.FAILED: "failed",
    EventKind.STOPPED: "stopped",
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
    EventKind.FIRST_STEP: "green",
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


def event_line(event: Event) -> Text:
    """One event as a line of a stream: time of day, kind, message."""
    return Text.assemble(
        (clock_text(event.at), "dim"),
        "  ",
        (WORD[event.kind].ljust(WORD_WIDTH), STYLE.get(event.kind, "cyan")),
        "  ",
        harmless(event.message),
    )


def timeline(events: Sequence[Event], *, since: datetime, limit: int | None = None) -> RenderableType:
    """The newest `limit` events that are not routine, oldest first; `since` is second 0."""
    told = [event for event in events if event.kind not in ROUTINE]
    shown = told if limit is None else told[-limit:]
    table = columns("AFTER", "EVENT", "WHAT HAPPENED", right=["AFTER"], wrap=["WHAT HAPPENED"])
    for event in shown:
        table.add_row(
            Text(offset_text((event.at - since).total_seconds()), style="dim"),
            Text(WORD[event.kind], style=STYLE.get(event.kind, "cyan")),
            Text(harmless(event.message)),
        )
    hidden = len(told) - len(shown)
    return Group(Text(f"... {plural(hidden, 'earlier event')}", style="dim"), table) if hidden else table


def event_table(events: Sequence[Event]) -> Table:
    """Every event with its time of day and place, for `shardyard events`."""
    table = columns("TIME", "WHERE", "EVENT", "WHAT HAPPENED", wrap=["WHAT HAPPENED"])
    for event in events:
        table.add_row(
            Text(clock_text(event.at), style="dim"),
            Text(where_text(event), style="dim"),
            Text(WORD[event.kind], style=STYLE.get(event.kind, "cyan")),
            Text(harmless(event.message)),
        )
    return table
