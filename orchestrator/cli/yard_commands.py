"""up, down, serve, demo, doctor: the yard itself."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.cli.command import JsonFlag, SetOption, command, leave
from orchestrator.cli.connect import connected, explained
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.job_file import read_job_file
from orchestrator.cli.pictures.demo_report import up_line
from orchestrator.cli.screen import Screen
from orchestrator.cli.wording import plural
from orchestrator.errors import OrchestratorError
from orchestrator.settings import Settings, read_settings
from workers.contract.location import is_url, url_problem

HomeOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="State directory; without it $SHARDYARD_HOME, else ~/.shardyard."),
]


def _settings(home: Path | None) -> tuple[Settings, dict[str, str]]:
    environ = dict(os.environ) if home is None else {**os.environ, "SHARDYARD_HOME": str(home.absolute())}
    with explained():
        return read_settings(environ), environ


@command
def up(
    home: HomeOption = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="CPUs that Ray may give out; without it all.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs that Ray may give out; without it all.")
    ] = None,
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="DIR",
            help="Let jobs use data and storage below DIR too, or checkpoints below a URL, s3://bucket/prefix. May be repeated.",
        ),
    ] = [],  # noqa: B006 -- typer copies it
    as_json: JsonFlag = False,
) -> None:
    """Start Ray and the orchestrator on this machine.

    The API listens on loopback. Ray is a cluster of its own: other machines reach its ports, and need its token. What runs already stays, as do the jobs on it; what died is started anew. With SHARDYARD_RAY_ADDRESS set, only the orchestrator is started.
    """
    from orchestrator.cli.yard import (
        bring_up,
        running_cluster,
    )  # psutil, the process edge: `ls` need not wait

    screen = Screen(as_json=as_json)
    settings, environ = _settings(home)
    cluster = running_cluster(settings.home_dir)
    if cluster is not None and (cpus, gpus) not in ((None, None), (cluster.num_cpus, cluster.num_gpus)):
        raise CliError(
            "Ray is up, and gives out what it was started with",
            remedy="`shardyard down` first; jobs that run then are ended, and go on at the next `up`.",
        )
    environ |= _allowing(settings, allow)
    with screen.busy("starting"):
        yard = bring_up(
            settings.home_dir,
            environ=environ,
            num_cpus=cpus,
            num_gpus=gpus,
            with_ray=settings.ray_address is None,
            listens=(settings.host, settings.port) if settings.port else None,
            tell=lambda what, where, seconds: screen.show(up_line(what, where, seconds)),
        )
    screen.emit(
        {
            "url": yard.service.url,
            "ray": yard.cluster.url if yard.cluster else settings.ray_address,
            "home": str(yard.home),
            "storage": str(settings.storage_dir),
            "logs": str(yard.service.log.parent),
        }
    )
    screen.show(up_line("Storage", str(settings.storage_dir), None), up_line("State", str(yard.home), None))
    screen.say("\nshardyard submit JOB.yaml --follow    shardyard down", "dim")


def _allowing(settings: Settings, more: list[str]) -> dict[str, str]:
    """Return the setting that adds `more` to the roots that jobs may use."""
    roots = [*settings.allowed_roots, *map(_root, more)]
    return {"SHARDYARD_ALLOWED_ROOTS": ",".join(roots)} if roots else {}


def _root(given: str) -> str:
    """Check a root as it was given, and return what the service is told."""
    problem = url_problem(given) if is_url(given) else None
    root = given if is_url(given) else str(Path(given).expanduser().resolve())
    if "," in root:
        problem = "holds a comma"
    elif not is_url(given) and not Path(root).is_dir():
        problem = "is no directory"
    if problem is not None:
        raise CliError(f"--allow: {root} {problem}", code=ExitCode.BAD_INPUT)
    return root


@command
def down(home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """End what `up` started: Ray, the orchestrator, and the processes of every job.

    Run directories stay: checkpoints, logs and exports outlive the cluster. A job that has not ended goes on from its newest checkpoint at the next `up`; `shardyard cancel` it first if it shall not.
    """
    from orchestrator.cli.yard import bring_down  # see `up`

    screen = Screen(as_json=as_json)
    settings, environ = _settings(home)
    with screen.busy("ending"):
        unfinished = _unfinished(environ)
        taken = bring_down(settings.home_dir)
    screen.emit({"processes_ended": taken.service + taken.cluster, "unfinished": unfinished})
    if taken.service + taken.cluster:
        screen.say(f"Down: {plural(taken.service + taken.cluster, 'process', 'processes')} ended, none left.")
    else:
        screen.say("Nothing was up.")
    if unfinished:
        screen.say(f"Not finished, and going on at the next `shardyard up`: {', '.join(unfinished)}.")


def _unfinished(environ: Mapping[str, str]) -> list[str]:
    """Names of the jobs that have not ended in the yard of this machine; none where nobody answers."""
    own = {name: value for name, value in environ.items() if name != "SHARDYARD_URL"}
    try:
        with connected(own) as client:
            return [job.name for job in client.all_jobs() if not job.is_terminal]
    except CliError:
        return []


@command
def serve() -> None:
    """Run the orchestrator in the foreground.

    For a service manager or a container. Settings come from SHARDYARD_* variables.
    """
    from orchestrator.app import serve as run_service  # FastAPI, SQLAlchemy, Ray's client: half a second

    settings, _ = _settings(None)
    try:
        with explained():
            run_service(settings)
    except OrchestratorError as error:
        raise CliError(str(error)) from error


@command
def demo(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Another job file than examples/quickstart.yaml.")
    ] = None,
    overrides: SetOption = [],  # noqa: B006 -- typer copies it
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave Ray and orchestrator up, print the URL.")
    ] = False,
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="State directory; without it a temporary one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train, lose a rank to SIGKILL, recover, export.

    Starts a Ray and an orchestrator of its own, and ends them again, also at Ctrl-C. What the job wrote stays.
    Takes about two minutes on two cores.
    """
    from orchestrator.cli.demo import DemoHome, run_demo, temporary_home  # see `up`

    screen = Screen(as_json=as_json)
    job_file = read_job_file(file or str(quickstart_file()), overrides)
    job_file.parse()
    if home is not None:
        place = DemoHome(path=home.absolute(), is_temporary=False, keep=keep)
    elif keep:
        place = DemoHome(path=_settings(None)[0].home_dir, is_temporary=False, keep=True)
    else:
        place = DemoHome(path=temporary_home(), is_temporary=True, keep=False)
    leave(run_demo(screen, job_file, place, environ=os.environ))


def quickstart_file() -> Path:
    """Return the example job: packed into the wheel beside the code, or in the repository."""
    package = Path(__file__).parents[1]
    for path in (package / "quickstart.yaml", package.parent / "examples" / "quickstart.yaml"):
        if path.is_file():
            return path
    raise CliError("examples/quickstart.yaml is not here", remedy="Name a job file: shardyard demo FILE")


@command
def doctor(as_json: JsonFlag = False) -> None:
    """Say what is wrong here, and what to do.

    Looks at this machine, the installation, the orchestrator and its Ray. Changes nothing.
    """
    from orchestrator.cli.doctor import examine  # psutil

    screen = Screen(as_json=as_json)
    worst = "ok"
    for finding in examine(os.environ):
        screen.emit(finding)
        style = {"ok": "green", "warn": "yellow", "fail": "bold red"}[finding.verdict]
        screen.show(
            Text.assemble(
                (finding.verdict.ljust(6), style), (finding.subject.ljust(14), "bold"), finding.found
            )
        )
        if finding.remedy:
            screen.show(Text(f"{'':20}{finding.remedy}", style="dim"))
        worst = max(worst, finding.verdict, key=("ok", "warn", "fail").index)
    leave(ExitCode.FAILED if worst == "fail" else ExitCode.DONE)
