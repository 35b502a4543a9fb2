"""Where a job may read and write: paths of a job file, made absolute and held under the allowed roots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Final, Self

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.model import JobSpec
from orchestrator.working_dir import WorkingDirError, check
from workers.contract.config import paths_of
from workers.contract.location import is_below, is_url, url_problem

STANDARD_LIBRARY: Final = "python-stdlib"  # names the interpreter's own library, not a path
LOGS_OF_URLS: Final = "runs"  # below the storage root: logs and events of jobs whose checkpoints lie at a URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where jobs may read and write. Relative paths of a job file lie under `storage`."""

    storage: Path
    allowed: tuple[Path, ...] = ()  # further roots for absolute paths
    urls: tuple[str, ...] = ()  # roots in object stores, for checkpoints alone

    @classmethod
    def of(cls, storage: Path, allowed: Sequence[str]) -> Self:
        """Tell paths and URLs apart."""
        paths = tuple(Path(root).expanduser() for root in allowed if not is_url(root))
        return cls(storage=storage, allowed=paths, urls=tuple(root for root in allowed if is_url(root)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A job file whose paths are absolute, and the run directory's parent."""

    spec: JobSpec
    storage_dir: Path


def place(spec: JobSpec, roots: Roots, *, source: str) -> Placed:
    """Make every path absolute. Raises SpecError for one that leaves the roots, and for code that cannot be shipped."""
    problems: list[Problem] = []
    storage_dir = _storage_dir(spec.checkpoint.storage_path, roots, source, problems)
    placed = {
        place: str(_resolve(place, path, roots, source, problems))
        for place, path in paths_of(spec).items()
        if path != STANDARD_LIBRARY
    }
    if spec.runtime.working_dir is not None:
        try:
            check(Path(spec.runtime.working_dir))
        except WorkingDirError as error:
            rule = str(error).removeprefix("runtime.working_dir: ")
            problems.append(_problem("runtime.working_dir", "", rule, source))
    if problems:
        raise SpecError(problems)
    return Placed(spec=_with_paths(spec, placed), storage_dir=storage_dir)


def _with_paths(spec: JobSpec, paths: Mapping[str, str]) -> JobSpec:
    """Return the job file with other paths at the named places; what nobody wrote stays unwritten."""
    content = spec.model_dump(mode="json", exclude_unset=True)
    for place, path in paths.items():
        *parents, key = place.split(".")
        reduce(lambda section, name: section[name], parents, content)[key] = path
    return JobSpec.model_validate(content)


def _storage_dir(value: str, roots: Roots, source: str, problems: list[Problem]) -> Path:
    """Return the run directory's parent: where checkpoints lie, too, unless they lie at a URL below an allowed one."""
    where = "checkpoint.storage_path"
    if not is_url(value):
        return _resolve(where, value, roots, source, problems)
    wrong = url_problem(value)
    if wrong is not None:
        problems.append(_problem(where, value, wrong, source))
    elif not any(is_below(value, root) for root in roots.urls):
        problem = _problem(where, value, "is at no URL that jobs may use", source)
        named = f"put it below {', '.join(roots.urls)}, or " if roots.urls else ""
        problems.append(
            replace(problem, remedy=f"{named}start the service with `shardyard up --allow {value}`")
        )
    return (roots.storage / LOGS_OF_URLS).resolve()


def _resolve(path: str, value: str, roots: Roots, source: str, problems: list[Problem]) -> Path:
    """Return the absolute path, links followed; adds a problem where it is not one that a job may use."""
    if not value.strip():
        problems.append(_problem(path, repr(value), "is not a path", source))
        return roots.storage
    if is_url(value):
        problem = _problem(path, value, "is a URL, and data are read from directories only", source)
        problems.append(replace(problem, remedy="use a directory that every node mounts"))
        return roots.storage
    resolved = (roots.storage / value).resolve()
    allowed = (roots.storage, *roots.allowed)
    if not any(resolved.is_relative_to(root.resolve()) for root in allowed):
        problems.append(_outside(path, value, allowed, source))
    return resolved


def _outside(path: str, value: str, allowed: Sequence[Path], source: str) -> Problem:
    named = ", ".join(str(root) for root in allowed)
    remedy = f"put it under {named}, or start the service with SHARDYARD_ALLOWED_ROOTS naming its directory"
    return replace(_problem(path, value, "lies outside the roots that jobs may use", source), remedy=remedy)


def _problem(path: str, value: str, rule: str, source: str) -> Problem:
    return Problem(source=source, line=None, column=None, path=path, value=value, rule=rule)
