"""`shardyard-worker` as a child process: where torch is needed without a cluster."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from orchestrator.cli.exit_code import CliError, ExitCode

_ERROR_NAME: Final = re.compile(r"^(?:\w*[Ee]rror: )+")  # a person needs the sentence, not its class
STOP_SECONDS: Final = 20.0  # what a child gets to end its own children after SIGTERM


def worker_program() -> str:
    """Path of `shardyard-worker`: the one beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / "shardyard-worker"
    found = str(beside) if beside.exists() else shutil.which("shardyard-worker")
    if found is None:
        raise CliError(
            "`shardyard-worker` is not installed beside this interpreter",
            remedy="Install the package again: `pip install -c requirements/constraints.txt .`",
        )
    return found


def run_worker(arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """Run to the end and return stdout; raises CliError with the last line of stderr where it fails."""
    command = [worker_program(), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=_environment(environment), check=False
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = _ERROR_NAME.sub("", lines[-1]) if lines else f"exit code {done.returncode}"
        raise CliError(f"shardyard-worker {arguments[0]}: {said}", code=_exit_code(done.returncode))
    return done.stdout


class WorkerStream:
    """A running `shardyard-worker` whose stdout is one JSON object a line.

    It has a session of its own, so that Ctrl-C reaches this process alone, which then ends it in order.
    """

    def __init__(self, arguments: Sequence[str], *, stderr_file: Path) -> None:
        self.stderr_file = stderr_file
        with stderr_file.open("wb") as stderr:
            self._process = subprocess.Popen(
                [worker_program(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environment(None),
                start_new_session=True,
                text=True,
                errors="replace",
            )

    def lines(self) -> Iterator[dict[str, Any] | str]:
        """Yield each line as it comes: an object, or the text of a line that is none. Ends with the process."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            yield value if isinstance(value, dict) else line.rstrip("\n")

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        return self._process.wait()

    def stop(self, *, grace_seconds: float = STOP_SECONDS) -> None:
        """SIGTERM and `grace_seconds` to end in order, then SIGKILL for what is left of its session."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _environment(given: Mapping[str, str] | None) -> dict[str, str]:
    """PYTHONSAFEPATH: a `workers/` directory where the user stands must not take the place of ours."""
    return {**(os.environ if given is None else given), "PYTHONSAFEPATH": "1"}


def _exit_code(returncode: int) -> ExitCode:
    return ExitCode.BAD_INPUT if returncode == ExitCode.BAD_INPUT else ExitCode.FAILED
