"""pause, resume, retry: what people ask of a job that is there already."""

import getpass
from typing import Annotated, Final

import typer

from orchestrator.api.views import JobView
from orchestrator.cli.command import JobArgument, JsonFlag, command, leave
from orchestrator.cli.connect import connected
from orchestrator.cli.exit_code import ExitCode
from orchestrator.cli.screen import Screen

PAUSE_SECONDS: Final = 600.0  # ranks finish the step in work, or an evaluation, and save

ReasonOption = Annotated[str, typer.Option(help="Why; goes into the timeline.")]


@command
def pause(
    job: JobArgument,
    reason: ReasonOption = "",
    wait: Annotated[bool, typer.Option(help="Return only when it has left the cluster.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Save a job and let it leave the cluster; `resume` takes it up again.

    Its ranks finish the step in work and save it: no step is lost, and no failure is counted.
    """
    screen = Screen(as_json=as_json)
    with connected() as client:
        view = client.pause(client.job(job).id, reason=reason, by=user())
        if wait and view.state == "draining":
            screen.aside(f"{view.name}: waiting until its ranks have saved and left")
            view = client.wait(view.id, until=_is_out, timeout_seconds=PAUSE_SECONDS)
    screen.emit(view)
    if view.desired == "pause":
        screen.say(f"{view.name} is {view.state} after step {view.step}. Go on: shardyard resume {view.name}")
    else:
        screen.say(f"{view.name} is {view.state}: nothing to pause")
    is_as_asked = view.state == "paused" or (view.state == "draining" and not wait)
    leave(ExitCode.DONE if is_as_asked else ExitCode.FAILED)


@command
def resume(job: JobArgument, reason: ReasonOption = "", as_json: JsonFlag = False) -> None:
    """Put a paused job back in the queue; it goes on from what it saved."""
    screen = Screen(as_json=as_json)
    with connected() as client:
        before = client.job(job)
        view = client.resume(before.id, reason=reason, by=user())
    screen.emit(view)
    if before.desired == "pause":
        screen.say(
            f"{view.name} is {view.state}: {view.reason}. Follow it: shardyard logs {view.name} --follow"
        )
    else:
        screen.say(f"{view.name} is {view.state}: it is not paused")
    leave(ExitCode.DONE if before.desired == "pause" and view.desired == "run" else ExitCode.FAILED)


@command
def retry(job: JobArgument, reason: ReasonOption = "", as_json: JsonFlag = False) -> None:
    """Try a job again that failed or was cancelled, from its newest checkpoint.

    It has its whole budget of failures again, and the job file that it was submitted with.
    """
    screen = Screen(as_json=as_json)
    with connected() as client:
        before = client.job(job)
        view = client.retry(before.id, reason=reason, by=user())
    screen.emit(view)
    is_retried = before.state in ("failed", "cancelled") and not view.is_terminal
    if is_retried:
        screen.say(
            f"{view.name} is {view.state}: {view.reason}. Follow it: shardyard logs {view.name} --follow"
        )
    else:
        screen.say(f"{view.name} is {view.state}: only a job that failed or was cancelled can be tried again")
    leave(ExitCode.DONE if is_retried else ExitCode.FAILED)


def _is_out(job: JobView) -> bool:
    return job.state != "draining"


def user() -> str:
    """Name whoever asks; a container may run as a number that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
