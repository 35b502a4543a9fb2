"""Checkpoint storage on a file system that all nodes mount: durable files, atomic renames.

Every OSError leaves as StorageError with the path in it.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from workers.errors import MissingError, StorageError

_TEMPORARY: Final = ".tmp"


@contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingError(f"{path} does not exist") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(f"{'storage full: ' if full else ''}{path}: {error.strerror}") from error


class LocalStorage:
    """Files below one root directory, named relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def location(self) -> str:
        """The root, as messages name it."""
        return str(self.root)

    def directories(self, name: str = ".") -> list[str]:
        """Names of the directories in `name`, sorted; none where it does not exist."""
        return sorted(e.name for e in self._entries(name) if e.is_dir(follow_symlinks=False))

    def files(self, name: str) -> list[str]:
        """Names of the files in `name`, sorted; none where it does not exist."""
        return sorted(e.name for e in self._entries(name) if e.is_file(follow_symlinks=False))

    def _entries(self, name: str) -> list[os.DirEntry[str]]:
        path = self.root / name
        try:
            with _as_storage_error(path):
                return list(os.scandir(path)) if path.is_dir() else []
        except MissingError:  # it went meanwhile
            return []

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        status = self._status(name)
        return None if status is None else status.st_size

    def modified(self, name: str) -> float | None:
        """When a file was last written, in seconds of the file system's own clock; None where there is none."""
        status = self._status(name)
        return None if status is None else status.st_mtime

    def _status(self, name: str) -> os.stat_result | None:
        try:
            with _as_storage_error(self.root / name):
                return (self.root / name).stat()
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

    def publish(self, name: str, content: bytes, *, is_private: bool = False) -> None:
        """Write a file so that it is there whole or not at all, whatever dies when, and durable on return.

        A private one can be read by its owner alone.
        """
        temporary = f"{name}{_TEMPORARY}"
        with _as_storage_error(self.root / temporary):
            (self.root / temporary).unlink(missing_ok=True)  # of a try that failed
        with DurableFile(self.root / temporary, mode=0o600 if is_private else 0o644) as file:
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

    def remove(self, name: str) -> None:
        """Remove a file. Gone already is fine."""
        with _as_storage_error(self.root / name):
            (self.root / name).unlink(missing_ok=True)

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

    def __init__(self, path: Path, *, mode: int = 0o644) -> None:
        self._path = path
        self.size_bytes = 0
        with _as_storage_error(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

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
