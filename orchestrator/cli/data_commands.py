"""data prepare: what is done to data before a job reads it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.command import FileArgument, JsonFlag, SetOption, command
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.job_file import anchor_paths, quoted, read_job_file
from orchestrator.cli.screen import Screen
from orchestrator.cli.wording import harmless, plural
from orchestrator.cli.worker_process import run_worker
from workers.contract.config import MixtureData, TaskData, TokenData

data = typer.Typer(no_args_is_help=True, help="Prepare data for jobs: `data prepare`.")


@data.command(context_settings={"max_content_width": 100})
@command
def prepare(
    file: FileArgument,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write; missing or empty.")],
    overrides: SetOption = [],  # noqa: B006 -- typer copies it
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A Ray cluster (its GCS); without it one of its own, here."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Tokenize the data of a job file once, into token files with an index.

    Ray Data spreads the work over a cluster, whose nodes all have to see the data and DIR. What is printed then takes
    the place of the job file's `data`. Each source of a mixture gets a directory of its own in DIR.
    """
    screen = Screen(as_json=as_json)
    job_file = read_job_file(file, overrides)
    anchored = anchor_paths(
        job_file, job_file.parse(), Path.cwd() if file == "-" else Path(file).resolve().parent
    )
    section = anchored.parse().data
    if isinstance(section, TaskData):
        raise CliError("data.kind task is the task's own: it brings its samples", code=ExitCode.BAD_INPUT)
    arguments = ["data", "prepare", section.model_dump_json(), "--to", str(to.absolute())]
    with screen.busy("tokenizing"):
        said = run_worker([*arguments, *(("--address", address) if address else ())])
    directories = [json.loads(line) for line in said.splitlines()]
    for written in directories:
        screen.emit(written)
        screen.say(_line(written))
    screen.say(f"\n{_section(section, to.absolute())}", "dim")


def _line(written: dict[str, Any]) -> str:
    bad = [
        f"; {plural(written['bad_rows'], 'bad row')} left out, the first: {harmless(row)}"
        for row in written["first_bad_rows"][:1]
    ]
    return (
        f"{written['directory']}: {plural(written['tokens'], 'token')} of {plural(written['documents'], 'document')} "
        f"in {plural(len(written['files']), 'file')}{''.join(bad)}"
    )


def _section(section: TokenData, to: Path) -> str:
    """The job file's new `data`."""
    cut = f"seq_len: {section.seq_len}"
    if not isinstance(section, MixtureData):
        return f"data: {{kind: tokens, path: {quoted(str(to))}, {cut}, attention: {section.attention}}}"
    lines = [
        f"    {name}: {{weight: {source.weight:g}, data: {{kind: tokens, path: {quoted(str(to / name))}, "
        f"{cut}, attention: {source.data.attention}}}}}"
        for name, source in section.sources.items()
    ]
    return "\n".join(["data:", "  kind: mixture", "  sources:", *lines])
