"""The edge to checkpoint storage: durable writes, atomic publication, listing, deletion. Knows no torch.

Small on purpose: what an object store cannot do is not offered, so that one can stand here later. Every OSError
leaves as StorageError with the path in it.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from workers.errors import ConfigError, StorageError

_TEMPORARY: Final = ".tmp"


class MissingError(StorageError):
    """What should be read is not there."""


@contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingError(f"{path} does not exist") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(f"{'storage full: ' if full else ''}{path}: {error.strerror}") from error


def open_storage(location: str) -> "LocalStorage":
    """Open the storage at `location`, an absolute path. Raises ConfigError for a URL, which this version cannot use."""
    scheme = urlsplit(location).scheme
    if scheme:
        raise ConfigError(
            f"checkpoint.storage_path: {location} is a {scheme} URL; use a path that all nodes mount"
        )
    return LocalStorage(Path(location))


class LocalStorage:
    """Files below one root directory, named relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directories(self, name: str = ".") -> list[str]:
        """Names of the directories in `name`, sorted; none where it does not exist."""
        path = self.root / name
        with _as_storage_error(path):
            if not path.is_dir():
                return []
            return sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        try:
            with _as_storage_error(self.root / name):
                return (self.root / name).stat().st_size
        except MissingError:
            return None

    def read(self, name: str) -> bytes:
        """Return a whole small file. Raises MissingError."""
        with _as_storage_error(self.root / name):
            return (self.root / name).read_bytes()

    def make_directory(self, name: str) -> None:
        """Make a directory with its parents, and make its entry durable. There already is fine: many ranks do it."""
        path = self.root / name
        with _as_storage_error(path):
            path.mkdir(parents=True, exist_ok=True)
            _sync_directory(path.parent)

    def open(self, name: str) -> "ReadableFile":
        """Open a file for reading ranges of it. Raises MissingError."""
        return ReadableFile(self.root / name)

    def create(self, name: str) -> "DurableFile":
        """Open a new file for appending. Its directory entry is durable only after `sync_directory`."""
        return DurableFile(self.root / name)

    def sync_directory(self, name: str) -> None:
        """Make the entries of a directory durable."""
        with _as_storage_error(self.root / name):
            _sync_directory(self.root / name)

    def publish(self, name: str, content: bytes) -> None:
        """Write a file so that it is there whole or not at all, whatever dies when, and durable on return."""
        temporary = f"{name}{_TEMPORARY}"
        with _as_storage_error(self.root / temporary):
            (self.root / temporary).unlink(missing_ok=True)  # of a try that failed
        with self.create(temporary) as file:
            file.append(content)
        with _as_storage_error(self.root / name):
            os.replace(self.root / temporary, self.root / name)  # noqa: PTH105 -- one spelling with the other os calls
            _sync_directory((self.root / name).parent)

    def rename(self, old: str, new: str) -> bool:
        """Rename a file durably; False where it is gone already."""
        try:
            with _as_storage_error(self.root / old):
                os.replace(self.root / old, self.root / new)  # noqa: PTH105
                _sync_directory((self.root / new).parent)
        except MissingError:
            return False
        return True

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all that is in it. Gone already is fine, also when it goes meanwhile."""
        path = self.root / name
        with _as_storage_error(path):
            while path.exists():
                try:
                    shutil.rmtree(path)
                except FileNotFoundError:
                    continue  # somebody else is removing it too


class DurableFile:
    """A new file that grows; its bytes are durable when the `with` block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size_bytes = 0
        with _as_storage_error(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def append(self, content: bytes | memoryview) -> None:
        """Write all of `content` behind what is there."""
        view = memoryview(content).cast("B")
        with _as_storage_error(self._path):
            while view:
                written = os.write(self._descriptor, view)
                self.size_bytes += written
                view = view[written:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with _as_storage_error(self._path):
                    os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


class ReadableFile:
    """An open file; it stays readable when its name is deleted meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _as_storage_error(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_range(self, start: int, length: int) -> bytearray:
        """Return bytes [start, start + length), or fewer where the file ends before."""
        content = bytearray(length)
        view = memoryview(content)
        done = 0
        with _as_storage_error(self._path):
            while done < length and (count := os.preadv(self._descriptor, [view[done:]], start + done)):
                done += count
        view.release()
        del content[done:]
        return content

    def close(self) -> None:
        """Close the file; once."""
        os.close(self._descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
