"""From the environment to a client, and from its errors to sentences with a remedy."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.client import (
    Client,
    ClientError,
    ForbiddenError,
    NotFoundError,
    RejectedError,
    UnreachableError,
)
from orchestrator.settings import SettingsError, find_service


@contextmanager
def connected(environ: Mapping[str, str] | None = None) -> Iterator[Client]:
    """Give a client of the service that `environ` (this process's own by default) leads to.

    Whatever it raises inside the block becomes a CliError.
    """
    with explained():
        endpoint = find_service(os.environ if environ is None else environ)
        if endpoint is None:
            raise CliError(
                "no orchestrator is announced here",
                remedy="Start one with `shardyard up`, or name one with SHARDYARD_URL.",
                code=ExitCode.UNREACHABLE,
            )
        with Client(endpoint.url, endpoint.token) as client:
            yield client


@contextmanager
def explained() -> Iterator[None]:
    """Turn what a client or the settings raise into a CliError with a remedy and an exit code."""
    try:
        yield
    except SettingsError as error:
        raise CliError(str(error), code=ExitCode.BAD_INPUT) from error
    except ClientError as error:
        raise _explain(error) from error


def _explain(error: ClientError) -> CliError:
    match error:
        case UnreachableError():
            return CliError(
                str(error),
                remedy="Is it running? `shardyard doctor` looks, `shardyard up` starts it.",
                code=ExitCode.UNREACHABLE,
            )
        case ForbiddenError():
            return CliError(
                str(error),
                remedy="The token comes from SHARDYARD_TOKEN, SHARDYARD_TOKEN_FILE or $SHARDYARD_HOME/token.",
            )
        case RejectedError():
            problems = tuple(problem.text for problem in error.problems)
            return CliError(str(error), problems=problems, code=ExitCode.BAD_INPUT)
        case NotFoundError():
            return CliError(str(error), remedy="`shardyard ls --all` shows every job.")
        case _:
            return CliError(str(error))
