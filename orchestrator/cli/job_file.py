"""A job file as the user wrote it: read, checked before anything is sent, what it names beside it made whole."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.wording import plural
from orchestrator.errors import SpecError
from orchestrator.spec import parse_spec, written_at
from orchestrator.spec.model import JobSpec
from workers.contract.config import paths_of

MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """The text, what messages call it, and the `a.b=c` that go on top."""

    text: str
    source: str
    overrides: tuple[str, ...]
    anchored: tuple[str, ...] = ()  # overrides of ours: the file's own paths, made whole

    @property
    def all_overrides(self) -> tuple[str, ...]:
        """Everything that goes on top of the text."""
        return self.overrides + self.anchored

    def as_written(self, problem: str) -> str:
        """Name the file as the place of a problem, where it would name an override that nobody wrote."""
        for override in self.anchored:
            problem = problem.replace(f"--set {override}: ", f"{self.source}: ")
        return problem

    def parse(self) -> JobSpec:
        """Check the whole file. Raises CliError (BAD_INPUT) with every problem found."""
        try:
            return parse_spec(self.text, overrides=self.all_overrides, source=self.source)
        except SpecError as error:
            number = len(error.problems)
            raise CliError(
                f"{self.source}: {plural(number, 'problem')}",
                problems=tuple(self.as_written(str(problem)) for problem in error.problems),
                code=ExitCode.BAD_INPUT,
            ) from error


def read_job_file(path: str, overrides: Sequence[str]) -> JobFile:
    """Read `path`, or stdin for `-`. Raises CliError (BAD_INPUT) for what is no readable text."""
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if path == "-" else _head_of(Path(path))
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}", code=ExitCode.BAD_INPUT) from error
    if len(data) > MAX_BYTES:
        raise CliError(f"{path}: longer than {MAX_BYTES} bytes, no job file is", code=ExitCode.BAD_INPUT)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CliError(
            f"{path}: not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x})",
            code=ExitCode.BAD_INPUT,
        ) from error
    job_file = JobFile(text=text, source="stdin" if path == "-" else path, overrides=tuple(overrides))
    return inline_raw(job_file, Path.cwd() if path == "-" else Path(path).parent)


def inline_raw(job_file: JobFile, directory: Path) -> JobFile:
    """Put the DeepSpeed configuration in that `engine.raw` names as a file, relative to `directory`.

    Raises CliError (BAD_INPUT) where that is no file of a JSON object.
    """
    try:
        name = written_at(
            ("engine", "raw"), job_file.text, overrides=job_file.overrides, source=job_file.source
        )
    except SpecError:
        return job_file  # `parse` tells what is wrong with it
    if not isinstance(name, str):
        return job_file
    path = directory / os.path.expanduser(name)  # noqa: PTH111 -- a `~nobody` that is no user's stays a name
    try:
        content = json.loads(_head_of(path))
    except OSError as error:
        raise CliError(f"engine.raw: {path}: {error.strerror or error}", code=ExitCode.BAD_INPUT) from error
    except ValueError as error:
        raise CliError(f"engine.raw: {path} is not JSON: {error}", code=ExitCode.BAD_INPUT) from error
    if not isinstance(content, dict):
        raise CliError(f"engine.raw: {path} is no JSON object", code=ExitCode.BAD_INPUT)
    return replace(job_file, anchored=(f"engine.raw={json.dumps(content)}",))


def anchor_paths(job_file: JobFile, spec: JobSpec, directory: Path) -> JobFile:
    """Make relative paths absolute, from the job file's own directory: the service stands somewhere else.

    So are those that begin with `~`: it is the home of whoever submits.
    """
    added = []
    if spec.runtime.working_dir is not None and not Path(spec.runtime.working_dir).is_absolute():
        added.append(f"runtime.working_dir={_anchored(directory, spec.runtime.working_dir)}")
    added += [
        f"{place}={_anchored(directory, path)}"
        for place, path in paths_of(spec).items()
        if _is_relative(path)
    ]
    return replace(job_file, anchored=job_file.anchored + tuple(added))


def missing_paths(spec: JobSpec, directory: Path) -> tuple[str, ...]:
    """Say which relative paths lead nowhere from `directory`, the job file's own, and where that is.

    No error: the nodes may have what this machine has not.
    """
    looked = {
        place: (path, directory / os.path.expanduser(path))  # noqa: PTH111 -- as in `_anchored`
        for place, path in paths_of(spec).items()
        if _is_relative(path)
    }
    return tuple(
        f"{place}: {path} is not here: a relative path begins at the job file's directory, and there is no {found.absolute()}"
        for place, (path, found) in looked.items()
        if not found.exists()
    )


def _is_relative(path: str) -> bool:
    return path != "python-stdlib" and "://" not in path and not Path(path).is_absolute()


def _anchored(directory: Path, path: str) -> str:
    # os.path's own: a `~nobody` that is no user's stays a name, where pathlib would raise
    return quoted(str((directory / os.path.expanduser(path)).resolve()))  # noqa: PTH111


def quoted(text: str) -> str:
    """Write text as a YAML scalar that is read back as it is, whatever it holds."""
    return "'" + text.replace("'", "''") + "'"


def _head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
