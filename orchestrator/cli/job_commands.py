"""submit, validate, schema, ls, show, cancel: thin, each reads its options, asks, and draws."""

import uuid
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.text import Text

from orchestrator.api.views import JobView, State
from orchestrator.cli.command import FileArgument, JobArgument, JsonFlag, SetOption, command, leave
from orchestrator.cli.connect import connected
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.follow import Follower, result_code
from orchestrator.cli.job_file import JobFile, anchor_paths, missing_paths, quoted, read_job_file
from orchestrator.cli.local_run import run_local
from orchestrator.cli.pictures.job_list import job_table
from orchestrator.cli.pictures.job_page import job_page, training_facts
from orchestrator.cli.pictures.memory import memory_table
from orchestrator.cli.pictures.result import result_page
from orchestrator.cli.pictures.style import facts, heading
from orchestrator.cli.pictures.timeline import timeline
from orchestrator.cli.screen import Screen
from orchestrator.cli.wish_commands import user
from orchestrator.cli.wording import plural
from orchestrator.client import Client, RejectedError
from orchestrator.spec import JobSpec
from orchestrator.spec import schema as job_schema

LIST_LIMIT = 20
TIMELINE_LINES = 20
CANCEL_SECONDS = 120.0


@command
def submit(
    file: FileArgument,
    overrides: SetOption = [],  # noqa: B006 -- typer copies it
    name: Annotated[str | None, typer.Option(help="Name the job; stands above the file's own name.")] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Stream events, logs and progress; end with the job's result."),
    ] = False,
    local: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Run here on N workers of a Ray of its own, without orchestrator."
        ),
    ] = None,
    resume_from: Annotated[
        str | None,
        typer.Option(
            metavar="JOB[@STEP]",
            help="Begin with a checkpoint of another job; with --local of a run directory or URL.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Idempotency key: a second submit with the same one makes no second job."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a job file and submit it.

    The whole file is checked first; every mistake is named with its line and its remedy, and nothing is submitted.
    With --follow, Ctrl-C ends the looking, not the job.
    """
    screen = Screen(as_json=as_json)
    named = [f"name={quoted(name)}"] if name else []
    widths = [f"scaling.num_workers={local}"] if local else []
    job_file = read_job_file(file, [*overrides, *named, *widths])
    spec = job_file.parse()
    _warn(screen, spec, file)
    job_file = anchor_paths(job_file, spec, _directory_of(file))
    if local is not None:
        leave(run_local(screen, job_file.parse(), num_workers=local, origin=resume_from))
        return
    with connected() as client:
        job = _send(client, job_file, key=key or str(uuid.uuid4()), resume_from=resume_from)
        if not follow:
            screen.emit(job)
            screen.show(Text.assemble((job.name, "bold"), f" is {job.state} as ", (job.id, "bold")))
            screen.say(f"shardyard logs {job.name} --follow    shardyard show {job.name}", "dim")
            return
        screen.show(Text.assemble((job.name, "bold"), "  ", (job.id, "dim")))
        end = followed(Follower(client, screen, job))
        screen.emit(end)
        screen.show(result_page(end, client.samples(end.id)))
        leave(result_code(end))


def _warn(screen: Screen, spec: JobSpec, file: str) -> None:
    """Say what may not be meant: paths that lead nowhere, a DeepSpeed configuration that is understood differently."""
    for warning in (*missing_paths(spec, _directory_of(file)), *spec.read_raw().warnings):
        screen.aside(f"warning: {warning}", "yellow")


def _directory_of(file: str) -> Path:
    """Where relative paths of a job file begin."""
    return Path.cwd() if file == "-" else Path(file).resolve().parent


def _send(client: Client, job_file: JobFile, *, key: str, resume_from: str | None) -> JobView:
    """Submit; what the service refuses (a path that it does not allow) is named as a place in the file."""
    try:
        return client.submit(
            job_file.text,
            overrides=job_file.all_overrides,
            source=job_file.source,
            idempotency_key=key,
            resume_from=resume_from,
        )
    except RejectedError as error:
        problems = tuple(job_file.as_written(problem.text) for problem in error.problems)
        about_roots = any("SHARDYARD_ALLOWED_ROOTS" in problem for problem in problems)
        raise CliError(
            f"{job_file.source}: the orchestrator refuses it" if problems else str(error),
            problems=problems,
            remedy="On this machine: shardyard up --allow DIR. What runs goes on." if about_roots else "",
            code=ExitCode.BAD_INPUT,
        ) from error


def followed(follower: Follower) -> JobView:
    """Follow to the end; on Ctrl-C say how to go on, and leave the job alone."""
    try:
        return follower.run()
    except KeyboardInterrupt:
        name = follower.job.name
        follower.screen.aside(f"\n{name} goes on. Follow it again: shardyard logs {name} --follow", "")
        follower.screen.aside(f"End it: shardyard cancel {name}", "")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


@command
def validate(
    file: FileArgument,
    overrides: SetOption = [],  # noqa: B006 -- typer copies it
    as_json: JsonFlag = False,
) -> None:
    """Check a job file; submit nothing.

    Needs no orchestrator.     With --json the file is printed as it is understood, every default filled in.
    """
    screen = Screen(as_json=as_json)
    job_file = read_job_file(file, overrides)
    spec = job_file.parse()
    _warn(screen, spec, file)
    screen.emit(spec)
    screen.show(
        Text.assemble((spec.name, "bold"), f"  {job_file.source} is valid"), facts(training_facts(spec))
    )


@command
def schema(as_json: JsonFlag = False) -> None:
    """Print the JSON Schema of a job file."""
    screen = Screen(as_json=as_json)
    screen.emit(job_schema())
    if not as_json:
        screen.out.print_json(data=job_schema())


@command
def ls(
    states: Annotated[
        list[str],
        typer.Option("--state", help="Only jobs in this state. May be repeated.", show_default=False),
    ] = [],  # noqa: B006 -- typer copies it
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show this many at most, the newest.")] = LIST_LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="Show every job.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, the newest first."""
    screen = Screen(as_json=as_json)
    with connected() as client:
        wanted = client.all_jobs(states=_states(states), name=name)
        jobs = list(wanted if everything else islice(wanted, limit + 1))
    shown = jobs if everything else jobs[:limit]
    for job in shown:
        screen.emit(job)
    if not shown:
        screen.say("No jobs." if not states and name is None else "No such jobs.", "dim")
        return
    screen.show(job_table(shown, now=datetime.now(UTC)))
    if len(jobs) > len(shown):
        screen.aside(f"There are more than {plural(limit, 'job')}: --all shows every one.")


def _states(names: list[str]) -> tuple[State, ...]:
    known: TypeAdapter[State] = TypeAdapter(State)
    try:
        return tuple(known.validate_python(name) for name in names)
    except ValueError as error:
        states = "queued, starting, running, recovering, draining, paused, succeeded, failed, cancelled"
        raise CliError(f"--state: not one of {states}", code=ExitCode.BAD_INPUT) from error


@command
def show(job: JobArgument, as_json: JsonFlag = False) -> None:
    """Show a job: facts, timeline, memory of each rank."""
    screen = Screen(as_json=as_json)
    with connected() as client:
        view = client.job(job)
        samples = client.samples(view.id)
        events = client.events(view.id, limit=1000).events
    screen.emit({**view.model_dump(mode="json"), "samples": samples})
    screen.show(job_page(view, samples, now=datetime.now(UTC)))
    if events:
        screen.show(heading("Timeline"), timeline(events, since=view.created_at, limit=TIMELINE_LINES))
    memory = memory_table(samples.latest)
    if memory is not None:
        screen.show(heading("Memory", "newest sample of each rank"), memory)


@command
def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Why; goes into the timeline.")] = "",
    wait: Annotated[
        bool, typer.Option(help="Return only when its processes and reservations are gone.")
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """End a job.

    It is called cancelled only once its processes and reservations are gone. A job that has ended stays as it is.
    """
    screen = Screen(as_json=as_json)
    with connected() as client:
        before = client.job(job)
        view = client.cancel(before.id, reason=reason, by=user())
        if wait and not view.is_terminal:
            screen.aside(f"{view.name}: waiting until its processes are gone")
            view = client.wait(view.id, timeout_seconds=CANCEL_SECONDS)
    screen.emit(view)
    if before.is_terminal:
        was = "been cancelled" if view.state == "cancelled" else view.state
        screen.say(f"{view.name} had already {was}: nothing to cancel")
    elif view.is_terminal:
        screen.say(f"{view.name} {'is' if view.state == 'cancelled' else 'had already'} {view.state}")
    else:
        screen.say(f"{view.name} is asked to end; now {view.state}: {view.reason}")
    is_as_asked = before.is_terminal or view.state == "cancelled" or not (wait or view.is_terminal)
    leave(ExitCode.DONE if is_as_asked else ExitCode.FAILED)
