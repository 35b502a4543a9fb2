"""Checkpoint storage in an object store, through fsspec.

An object is there whole or not at all once its last part was put, and what was put is read by everybody at once
(S3 since 2020, Google and Azure always). So a manifest that is put last publishes as a rename does; there are no
directories to make, and nothing to sync. What a path can do and this cannot: an open file that outlives the deletion
of its name, so that a reader here must hold what it reads (`holds`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from fsspec import AbstractFileSystem, filesystem

from workers.contract.location import join
from workers.errors import MissingError, StorageError

PART_BYTES: Final = 32 << 20  # of an upload: what a writer holds beside the chunk that it appends

# Listings are never cached: another rank, or retention, may have changed what lies there a moment ago.
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "s3": {"use_listings_cache": False, "default_fill_cache": False}
}


def open_file_system(scheme: str) -> AbstractFileSystem:
    """Return the client of an object store; credentials and endpoint come from the environment that it knows.

    Raises ImportError where its package is missing. Uses threads: not to be called in a process that will fork.
    """
    return filesystem(scheme, **_OPTIONS[scheme])


@contextmanager
def _as_storage_error(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingError(f"{url} does not exist") from error
    except (
        Exception
    ) as error:  # clients raise what their own libraries do: no tree of errors is common to them
        raise StorageError(f"{url}: {str(error) or type(error).__name__}") from error


class ObjectStorage:
    """Objects below one URL, named relative to it."""

    def __init__(self, file_system: AbstractFileSystem, url: str) -> None:
        self._fs = file_system
        self.location = url.rstrip("/")

    def _url(self, name: str) -> str:
        return self.location if name == "." else join(self.location, name)

    def directories(self, name: str = ".") -> list[str]:
        """Names of the prefixes below `name`, sorted."""
        return self._names(name, "directory")

    def files(self, name: str) -> list[str]:
        """Names of the objects right below `name`, sorted."""
        return self._names(name, "file")

    def _names(self, name: str, kind: str) -> list[str]:
        url = self._url(name)
        try:
            with _as_storage_error(url):
                found = self._fs.ls(url, detail=True)
        except MissingError:
            return []
        paths = (entry["name"].rstrip("/") for entry in found if entry["type"] == kind)
        return sorted(path.rpartition("/")[2] for path in paths if not url.endswith(f"/{path}"))

    def size(self, name: str) -> int | None:
        """Bytes of an object; None where there is none."""
        status = self._status(name)
        return None if status is None else int(status["size"])

    def modified(self, name: str) -> float | None:
        """When an object was put, in seconds of the store's own clock; None where there is none."""
        status = self._status(name)
        return None if status is None else float(status["LastModified"].timestamp())

    def _status(self, name: str) -> Mapping[str, Any] | None:
        url = self._url(name)
        try:
            with _as_storage_error(url):
                status: Mapping[str, Any] = self._fs.info(url)
        except MissingError:
            return None
        return status if status["type"] == "file" else None

    def read(self, name: str) -> bytes:
        """Return a whole small object. Raises MissingError."""
        url = self._url(name)
        with _as_storage_error(url):
            content: bytes = self._fs.cat_file(url)
        return content

    def make_directory(self, name: str) -> None:
        """Nothing to make: a prefix is there once something lies below it."""

    def open(self, name: str) -> "ObjectReader":
        """Look whether an object is there, to read parts of it. Raises MissingError."""
        size = self.size(name)
        if size is None:
            raise MissingError(f"{self._url(name)} does not exist")
        return ObjectReader(self._fs, self._url(name), size)

    def create(self, name: str) -> "ObjectWriter":
        """Begin an object; it is there for others once the `with` block has ended without an error."""
        return ObjectWriter(self._fs, self._url(name))

    def sync_directory(self, name: str) -> None:
        """Nothing to sync: what was put is listed."""

    def publish(self, name: str, content: bytes, *, is_private: bool = False) -> None:
        """Put an object, whole or not at all. Who may read it is the bucket's word."""
        url = self._url(name)
        with _as_storage_error(url):
            self._fs.pipe_file(url, content)

    def rename(self, old: str, new: str) -> bool:
        """Put the content under the new name, then remove the old one; False where it is gone already."""
        try:
            content = self.read(old)
        except MissingError:
            return False
        self.publish(new, content)
        self.remove(old)
        return True

    def remove(self, name: str) -> None:
        """Remove an object. Gone already is fine."""
        url = self._url(name)
        try:
            with _as_storage_error(url):
                self._fs.rm_file(url)
        except MissingError:
            return

    def remove_tree(self, name: str) -> None:
        """Remove every object below a prefix. Gone already is fine, also when it goes meanwhile."""
        url = self._url(name)
        with _as_storage_error(url):
            for path in self._fs.find(url):
                self._fs.rm_file(path)


class ObjectWriter:
    """A new object that grows, uploaded in parts."""

    def __init__(self, file_system: AbstractFileSystem, url: str) -> None:
        self._url = url
        self.size_bytes = 0
        with _as_storage_error(url):
            self._file = file_system.open(url, "wb", block_size=PART_BYTES)

    def append(self, content: bytes | memoryview) -> None:
        """Write all of `content` behind what is there."""
        view = memoryview(content).cast("B")
        with _as_storage_error(self._url):
            self._file.write(view)
        self.size_bytes += view.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _as_storage_error(self._url):
            if kind is None:
                self._file.close()
                return
            self._file.closed = True  # else it would be put together after all when Python forgets it
            self._file.discard()


class ObjectReader:
    """An object whose parts are read, each by a request of its own."""

    def __init__(self, file_system: AbstractFileSystem, url: str, size_bytes: int) -> None:
        self._fs = file_system
        self._url = url
        self._size_bytes = size_bytes

    def read_range(self, start: int, length: int) -> bytearray:
        """Return bytes [start, start + length), or fewer where the object ends before. Raises MissingError."""
        end = min(start + length, self._size_bytes)
        if end <= start:
            return bytearray()
        with _as_storage_error(self._url):
            return bytearray(self._fs.cat_file(self._url, start=start, end=end))

    def close(self) -> None:
        """Nothing is open between two reads."""
