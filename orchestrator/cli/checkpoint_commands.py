"""checkpoints, export: what a job has saved. A list of a job's comes from the service; the rest needs the storage alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.views import CheckpointView, JobView
from orchestrator.cli.command import JsonFlag, command, leave
from orchestrator.cli.connect import connected, explained
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.pictures.job_list import checkpoint_table
from orchestrator.cli.screen import Screen
from orchestrator.cli.wording import bytes_text, harmless
from orchestrator.cli.worker_process import run_worker
from orchestrator.settings import read_settings
from workers.contract.location import is_url, join
from workers.contract.rundir import CHECKPOINTS, checkpoints_dir, export_dir
from workers.contract.stored import Exported

RunArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Job by id or name, or a run directory, or the URL of a run.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run lies: of a job, or of no job that a service knows."""

    name: str
    storage: str  # a path or URL
    run_dir: str = ""  # empty where only the storage is known, and that is a URL
    job_id: str | None = None


@command
def checkpoints(
    job: RunArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare it with its digest.")
    ] = False,
    step: Annotated[str | None, typer.Option(help="With --verify: this step alone.", metavar="STEP")] = None,
    pin: Annotated[
        str | None, typer.Option(help="Keep the checkpoint of this step, whatever comes.", metavar="STEP")
    ] = None,
    unpin: Annotated[str | None, typer.Option(help="Let go of the one of this step.", metavar="STEP")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List a job's published checkpoints, newest first; verify them, or pin one.

    A step may also be the whole name of a checkpoint. What is damaged is named, and the command fails; a job that
    resumes passes it over by itself.
    """
    screen = Screen(as_json=as_json)
    run = find_run(job)
    wishes = {"--pin": pin, "--unpin": unpin, "--only": step}
    options = [part for option, value in wishes.items() if value is not None for part in (option, value)]
    if run.job_id is not None and not (verify or options):
        with connected() as client:
            found = client.checkpoints(run.job_id)
    else:
        found = _ask_storage(run, ["--verify", *options] if verify or step is not None else options)
    for checkpoint in found:
        screen.emit(checkpoint)
    if not found:
        screen.say(f"{run.name} has published no checkpoint.", "dim")
        return
    screen.show(checkpoint_table(found))
    screen.say(join(run.storage, CHECKPOINTS), "dim")
    damaged = [checkpoint for checkpoint in found if checkpoint.problem]
    for checkpoint in damaged:
        screen.aside(f"{checkpoint.name}: {harmless(checkpoint.problem)}", "red")
    if verify:
        screen.say("every byte is what was written" if not damaged else "the others are what was written")
    leave(ExitCode.FAILED if damaged else ExitCode.DONE)


def _ask_storage(run: Run, options: Sequence[str]) -> list[CheckpointView]:
    lines = run_worker(["checkpoints", run.storage, *options]).splitlines()
    return [CheckpointView.from_json(line) for line in lines]


@command
def export(
    job: RunArgument,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="STEP", help="Which one, by its step or whole name; without it the newest published."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; without it `export` in the run directory.")
    ] = None,
    max_shard_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Begin a new file where one would be larger.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a checkpoint as safetensors, which transformers loads.

    `model.safetensors`, or shards of it and their index, and `config.json`. Needs no cluster, only the storage, and
    holds one chunk in memory whatever the model's size.
    """
    screen = Screen(as_json=as_json)
    run = find_run(job)
    if to is None and not run.run_dir:
        raise CliError(f"{run.storage} is no place to export to: name one with --to", code=ExitCode.BAD_INPUT)
    target = (to or export_dir(run.run_dir)).resolve()
    arguments = ["export", run.storage, "--to", str(target)]
    arguments += ["--checkpoint", step] if step is not None else []
    arguments += ["--max-shard-bytes", str(max_shard_bytes)] if max_shard_bytes is not None else []
    exported = Exported.from_json(run_worker(arguments))
    files = sorted(path for path in target.iterdir() if path.is_file())
    sizes = {path.name: path.stat().st_size for path in files}
    screen.emit({**exported.model_dump(mode="json"), "files": sizes})
    for name, problem in exported.passed_over.items():
        screen.aside(f"passed over, damaged: {name}: {harmless(problem)}", "red")
    screen.say(f"step {exported.step} of {run.name}, checkpoint {exported.checkpoint}")
    screen.say(str(target), "bold")
    for path in files:
        screen.say(f"  {path.name}  {bytes_text(path.stat().st_size)}", "dim")


def find_run(job: str) -> Run:
    """Return the run that is named itself, by path or URL, or that of the job the service knows by this name."""
    if is_url(job):
        return Run(name=job, storage=job)
    if "/" in job or checkpoints_dir(job).is_dir():
        if not checkpoints_dir(job).is_dir():
            raise CliError(f"{job} is no run directory: it has no checkpoints/", code=ExitCode.BAD_INPUT)
        path = str(Path(job).resolve())
        return Run(name=job, storage=path, run_dir=path)
    view = _job_of_the_service(job)
    return Run(name=view.name, storage=view.storage or view.run_dir, run_dir=view.run_dir, job_id=view.id)


def _job_of_the_service(job: str) -> JobView:
    """Ask the orchestrator. Where none answers, the remedy names the way that needs none."""
    try:
        with connected() as client:
            return client.job(job)
    except CliError as error:
        if error.code is ExitCode.UNREACHABLE:
            with explained():
                storage = read_settings(os.environ).storage_dir
            error.remedy += (
                f"\nWithout one, name the run's directory in place of {job}: the job's `files` in `shardyard show`; "
                f"runs of this machine lie below {storage}."
            )
        raise
