"""The user's `runtime.working_dir`: checked, and packed into one archive that names itself by its content."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.archive import Package, archive
from orchestrator.errors import OrchestratorError

OUR_PACKAGES: Final = ("workers", "orchestrator")  # on sys.path, a user's would shadow ours
LEFT_OUT: Final = frozenset({".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
MAX_BYTES: Final = 256 << 20  # it passes through Ray's GCS, which holds it in memory


class WorkingDirError(OrchestratorError):
    """The working directory cannot be shipped: which path, which rule, what to do."""


def check(directory: Path) -> None:
    """Refuse a directory that cannot be shipped; raises WorkingDirError. Lists it, reads no file."""
    if not directory.is_absolute():
        raise WorkingDirError(
            f"runtime.working_dir: {directory} is not absolute: give the full path, as the service's machine sees it"
        )
    if not directory.is_dir():
        raise WorkingDirError(f"runtime.working_dir: {directory} is not a directory on the service's machine")
    for name in OUR_PACKAGES:
        if (directory / name).is_dir() or (directory / f"{name}.py").exists():
            raise WorkingDirError(
                f"runtime.working_dir: {directory} holds a top-level `{name}`, which would shadow shardyard's own: "
                "rename it, or ship a directory that does not hold it"
            )
    total = sum(path.stat().st_size for path in _files(directory))
    if total > MAX_BYTES:
        raise WorkingDirError(
            f"runtime.working_dir: {directory} holds {total >> 20} MiB, more than the {MAX_BYTES >> 20} MiB that are "
            "shipped: keep data on the shared storage and only code here"
        )


def pack(directory: Path) -> Package:
    """Check `directory` and archive it; the caller closes the file. Raises WorkingDirError."""
    check(directory)
    try:
        return archive((path, path.relative_to(directory).as_posix()) for path in _files(directory))
    except OSError as error:
        raise WorkingDirError(f"runtime.working_dir: {directory} cannot be read: {error}") from error


def _files(directory: Path) -> Iterator[Path]:
    """Every regular file below `directory`, in a fixed order; a link that leads out of it is refused."""
    root = directory.resolve()
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise WorkingDirError(
                    f"runtime.working_dir: {path} links to {path.resolve()}, outside of the directory: replace it by a copy"
                )
            if path.is_file():
                yield path
