"""logs, events: what a job told."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.api.views import LogView
from orchestrator.cli.command import JobArgument, JsonFlag, command, leave
from orchestrator.cli.connect import connected
from orchestrator.cli.follow import Follower, log_line, result_code
from orchestrator.cli.job_commands import followed
from orchestrator.cli.pictures.result import result_page
from orchestrator.cli.pictures.style import columns
from orchestrator.cli.pictures.timeline import event_line, event_table
from orchestrator.cli.screen import Screen
from orchestrator.cli.wording import bytes_text
from orchestrator.client import Client

TAIL_BYTES_A_LINE = 400  # how far back the last N lines are looked for


@command
def logs(
    job: JobArgument,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Only this attempt.")] = None,
    round_: Annotated[int | None, typer.Option("--round", min=0, help="Only this round.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every round of every attempt; without it the newest round.")
    ] = False,
    driver: Annotated[bool, typer.Option("--driver", help="What the drivers say, not the ranks.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last N lines of each.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Name the logs and their sizes.")] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Stream logs, events and progress; end with the job's result."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print what the ranks of a job wrote.

    Without options: the newest round. Logs lie in the run directory and outlive job and cluster.
    """
    screen = Screen(as_json=as_json)
    wants = _selection(rank=rank, attempt=attempt, round_=round_, driver=driver)
    with connected() as client:
        view = client.job(job)
        if follow:
            end = followed(Follower(client, screen, view, wants_log=wants))
            screen.emit(end)
            screen.show(result_page(end, client.samples(end.id)))
            leave(result_code(end))
            return
        found = [log for log in client.logs(view.id) if wants(log)]
        if not (everything or listing or driver or attempt is not None or round_ is not None):
            found = _newest_round(found)
        if listing:
            _list_logs(screen, found)
            return
        if not found:
            screen.aside(f"{view.name} has no such log yet ({view.state}: {view.reason})")
        printed = [
            _print_log(client, screen, view.id, log, tail=tail, with_label=len(found) > 1) for log in found
        ]
        if found and not any(printed):
            screen.aside(f"{view.name} wrote no log lines" + ("" if view.is_terminal else " yet"))


def _selection(
    *, rank: int | None, attempt: int | None, round_: int | None, driver: bool
) -> Callable[[LogView], bool]:
    def wants(log: LogView) -> bool:
        if driver or log.rank is None:
            return driver and log.rank is None
        asked = ((rank, log.rank), (attempt, log.attempt), (round_, log.round))
        return all(value is None or value == of_log for value, of_log in asked)

    return wants


def _newest_round(found: Sequence[LogView]) -> list[LogView]:
    def place(log: LogView) -> tuple[int, int, int]:
        return (log.generation, log.attempt or 0, log.round or 0)

    newest = max(map(place, found), default=None)
    return [log for log in found if place(log) == newest]


def _list_logs(screen: Screen, found: Sequence[LogView]) -> None:
    table = columns("LOG", "SIZE", "WRITTEN", right=["SIZE"])
    for log in found:
        screen.emit(log)
        table.add_row(
            log.label, bytes_text(log.size_bytes), Text(f"{log.modified_at.astimezone():%Y-%m-%d %H:%M:%S}")
        )
    screen.show(table if found else Text("No logs.", style="dim"))


def _print_log(
    client: Client, screen: Screen, job_id: str, log: LogView, *, tail: int | None, with_label: bool
) -> int:
    """Print a log; return how many lines it has."""
    lines = _lines(client, job_id, log, tail=tail)
    for line in lines:
        screen.emit({"log": log.label, "rank": log.rank, "line": line})
        screen.show_line(log_line(log.label if with_label else "", line))
    return len(lines)


def _lines(client: Client, job_id: str, log: LogView, *, tail: int | None) -> list[str]:
    """All lines of a log, piece by piece; or the last `tail` of them, as far back as they may reasonably lie."""
    offset = 0 if tail is None else max(0, log.size_bytes - tail * TAIL_BYTES_A_LINE)
    parts = []
    while True:
        chunk = client.read_log(job_id, log, offset=offset)
        parts.append(chunk.text)
        if chunk.next_offset >= chunk.size_bytes or chunk.next_offset == offset:
            break
        offset = chunk.next_offset
    lines = "".join(parts).splitlines()
    return lines if tail is None else lines[-tail:]


@command
def events(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print a job's whole timeline."""
    screen = Screen(as_json=as_json)
    with connected() as client:
        view = client.job(job)
        if follow:
            for event in client.follow_events(view.id):
                screen.emit(event)
                screen.show(event_line(event))
            leave(result_code(client.job(view.id)))
            return
        page = client.events(view.id, limit=1000)
        told = list(page.events)
        while len(page.events) == 1000:
            page = client.events(view.id, after=page.next_after, limit=1000)
            told += page.events
    for event in told:
        screen.emit(event)
    screen.show(event_table(told) if told else Text("Nothing has happened yet.", style="dim"))
