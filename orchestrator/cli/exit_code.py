"""What the shell gets. A script may rely on these numbers; `shardyard --help` prints the same table."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """0 only if what was asked happened."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    CANCELLED = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


MEANING: Final[dict[ExitCode, str]] = {
    ExitCode.DONE: "what was asked happened",
    ExitCode.FAILED: "it did not: the job failed, a check failed, there is no such job",
    ExitCode.BAD_INPUT: "the input is wrong: an option or the job file",
    ExitCode.CANCELLED: "the job was cancelled",
    ExitCode.UNREACHABLE: "the orchestrator or Ray does not answer",
    ExitCode.INTERRUPTED: "Ctrl-C; a job that was followed goes on",
}


class CliError(Exception):
    """Something a person must read: one sentence, what to do about it, and the exit code."""

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        code: ExitCode = ExitCode.FAILED,
        problems: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
        self.problems = problems
