"""What every command shares: its common options, and how its errors end."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.screen import Screen
from orchestrator.cli.signals import interruptible

P = ParamSpec("P")
R = TypeVar("R")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON only, one object a line.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job, or its name: then the newest.")]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Job file (YAML); `-` reads stdin.")]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, `train.steps=50`. May be repeated."),
]


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Let a CliError end the process with its sentence and its exit code, and Ctrl-C with 130."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with interruptible():
                return function(*args, **kwargs)
        except CliError as error:
            Screen(as_json=bool(kwargs.get("as_json"))).fail(error)
            raise typer.Exit(error.code) from error
        except KeyboardInterrupt:
            print(file=sys.stderr)  # noqa: T201 -- the shell's `^C` stands alone on its line
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return run


def leave(code: ExitCode) -> None:
    """End the command with `code`."""
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


CommandFunction = Callable[..., Any]
