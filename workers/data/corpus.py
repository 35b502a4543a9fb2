"""Which files a data section names, what they hold, and in which order: the same on every machine."""

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

import xxhash

from workers.contract.config import TextData
from workers.contract.data_config import RowData
from workers.data.dataset import DataError

STDLIB: Final = "python-stdlib"
_READ_BYTES: Final = 1 << 20
# Installed packages differ from machine to machine, and tests are half of the library's bytes but poor reading.
_STDLIB_LEFT_OUT: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The files of one data section, sorted by path relative to its root, and how their rows are read."""

    data: RowData
    root: Path
    files: Sequence[Path]

    def digest(self) -> str:
        """Return the digest of the contents in order; costs one reading of all (13 MB: 0.1 s). Names do not matter.

        Each length follows its content, so that moving a file's end changes it. Raises DataError.
        """
        digest = xxhash.xxh3_128()
        for file in self.files:
            length = 0
            for part in _parts(file):
                digest.update(part)
                length += len(part)
            digest.update(length.to_bytes(8, "little"))
        return digest.hexdigest()


def find_corpus(data: RowData) -> Corpus:
    """Return the files that `data` names. Reads none of them.

    `pattern` is matched from the right (`*.py`, `docs/*.md`). Links to directories are not followed. Raises DataError.
    """
    is_stdlib = isinstance(data, TextData) and data.path == STDLIB
    root = Path(sysconfig.get_path("stdlib") if is_stdlib else data.path).expanduser()
    if root.is_file():
        return Corpus(data=data, root=root.parent, files=(root,))
    if not root.is_dir():
        raise DataError(f"data.path: there is no file or directory {root.absolute()} on this node")
    left_out = _STDLIB_LEFT_OUT if is_stdlib else frozenset[str]()
    found = [name for name in _walk(root, left_out) if PurePath(name).match(data.pattern)]
    if not found:
        raise DataError(f"data.pattern: no file under {root.absolute()} matches {data.pattern!r}")
    return Corpus(data=data, root=root, files=tuple(root / name for name in sorted(found)))


def unreadable(file: Path, error: OSError) -> DataError:
    """Return the error that says which file cannot be read, and why."""
    return DataError(f"data.path: cannot read {file}: {error.strerror}")


def _walk(root: Path, left_out: frozenset[str]) -> Iterator[str]:
    """Yield regular files below `root` as relative POSIX paths, in no particular order."""
    for directory, subdirectories, names in os.walk(root, onerror=_refuse):
        subdirectories[:] = [name for name in subdirectories if name not in left_out]
        for name in names:
            path = Path(directory, name)
            if path.is_file():
                yield path.relative_to(root).as_posix()


def _refuse(error: OSError) -> None:
    raise unreadable(Path(str(error.filename)), error) from error


def _parts(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            while part := opened.read(_READ_BYTES):
                yield part
    except OSError as error:
        raise unreadable(file, error) from error
