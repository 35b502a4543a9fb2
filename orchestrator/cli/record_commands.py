"""logs, events, checkpoints, export: what a job left behind."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.api.views import LogView
from orchestrator.cli.command import JobArgument, JsonFlag, command, leave
from orchestrator.cli.connect import connected
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.follow import Follower, log_line, result_code
from orchestrator.cli.job_commands import followed
from orchestrator.cli.pictures.job_list import checkpoint_table
from orchestrator.cli.pictures.result import result_page
from orchestrator.cli.pictures.style import columns
from orchestrator.cli.pictures.timeline import event_line, event_table
from orchestrator.cli.screen import Screen
from orchestrator.cli.wording import bytes_text
from orchestrator.cli.worker_process import run_worker
from orchestrator.client import Client
from workers.contract.rundir import checkpoints_dir, export_dir

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
        for log in found:
            _print_log(client, screen, view.id, log, tail=tail, with_label=len(found) > 1)


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
) -> None:
    for line in _lines(client, job_id, log, tail=tail):
        screen.emit({"log": log.label, "rank": log.rank, "line": line})
        screen.show_line(log_line(log.label if with_label else "", line))


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


@command
def checkpoints(job: JobArgument, as_json: JsonFlag = False) -> None:
    """List a job's published checkpoints, newest first."""
    screen = Screen(as_json=as_json)
    with connected() as client:
        view = client.job(job)
        found = client.checkpoints(view.id)
    for checkpoint in found:
        screen.emit(checkpoint)
    if not found:
        screen.say(f"{view.name} has published no checkpoint.", "dim")
        return
    screen.show(checkpoint_table(found))
    screen.say(str(checkpoints_dir(view.run_dir)), "dim")


@command
def export(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job by id or name, or a run directory.")],
    checkpoint: Annotated[
        str | None, typer.Option(help="Which one; without it the newest published.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; without it `export` in the run directory.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a checkpoint as safetensors.

    `model.safetensors` and `config.json`, which transformers loads. Needs no cluster, only the run directory.
    """
    screen = Screen(as_json=as_json)
    run_dir = _run_dir(job)
    target = (to or export_dir(run_dir)).resolve()
    chosen = ["--checkpoint", checkpoint] if checkpoint else []
    run_worker(["export", run_dir, *chosen, "--to", str(target)])
    files = sorted(path for path in target.iterdir() if path.is_file())
    screen.emit({"export_path": str(target), "files": {path.name: path.stat().st_size for path in files}})
    screen.say(str(target), "bold")
    for path in files:
        screen.say(f"  {path.name}  {bytes_text(path.stat().st_size)}", "dim")


def _run_dir(job: str) -> str:
    """Return the run directory itself, or that of the job the service knows by this name."""
    if "/" in job or checkpoints_dir(job).is_dir():
        if not checkpoints_dir(job).is_dir():
            raise CliError(f"{job} is no run directory: it has no checkpoints/", code=ExitCode.BAD_INPUT)
        return str(Path(job).resolve())
    with connected() as client:
        run_dir = client.job(job).run_dir
    if not Path(run_dir).is_dir():
        raise CliError(
            f"the run directory {run_dir} cannot be seen from this machine",
            remedy="Run `shardyard export` where the job's storage is mounted.",
        )
    return run_dir
