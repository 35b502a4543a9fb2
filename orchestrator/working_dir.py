"""The user's `runtime.working_dir`: checked, and packed into one archive that names itself by its content."""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from orchestrator.errors import OrchestratorError

OUR_PACKAGES: Final = ("workers", "orchestrator")  # on sys.path, a user's would shadow ours
LEFT_OUT: Final = frozenset({".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
MAX_BYTES: Final = 256 << 20  # it passes through Ray's GCS, which holds it in memory
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the oldest that zip knows: equal content gives equal archives
_BLOCK_BYTES: Final = 1 << 20


class WorkingDirError(OrchestratorError):
    """The working directory cannot be shipped: which path, which rule, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An archive on disk, at its beginning; whoever packed closes it. `name` changes with any byte of its content."""

    name: str
    file: IO[bytes]


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
    file = tempfile.TemporaryFile()  # noqa: SIM115 -- handed to the caller
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in _files(directory):
                entry = zipfile.ZipInfo(path.relative_to(directory).as_posix(), _EPOCH)
                entry.external_attr = (path.stat().st_mode & 0o777) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                with path.open("rb") as source, archive.open(entry, "w") as target:
                    while block := source.read(_BLOCK_BYTES):
                        target.write(block)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
        file.seek(0)
        return Package(name=f"_ray_pkg_{digest}.zip", file=file)
    except OSError as error:
        file.close()
        raise WorkingDirError(f"runtime.working_dir: {directory} cannot be read: {error}") from error
    except BaseException:
        file.close()
        raise


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
