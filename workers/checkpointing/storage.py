"""The edge to checkpoint storage: what is asked of it, and who answers for a path and for a URL. Knows no torch.

Small on purpose: what an object store cannot do is not asked. Names are relative to the storage's own root, with `/`
between directories. Every failure leaves as StorageError, with the place in it.
"""

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from workers.checkpointing.local_storage import LocalStorage
from workers.contract.location import SCHEMES, is_url, url_problem
from workers.errors import ConfigError


class GrowingFile(Protocol):
    """A new file; its bytes are durable when the `with` block ends without an error, and only then."""

    size_bytes: int

    def append(self, content: bytes | memoryview) -> None:
        """Write all of `content` behind what is there."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class RangeFile(Protocol):
    """A file whose parts are read."""

    def read_range(self, start: int, length: int) -> bytearray:
        """Return bytes [start, start + length), or fewer where the file ends before."""
        ...

    def close(self) -> None:
        """Close it; once."""
        ...


class Storage(Protocol):
    """Files below one root. Directories are entries of a file system, or prefixes that need no making."""

    @property
    def location(self) -> str:
        """The root, as messages name it."""
        ...

    def directories(self, name: str = ".") -> list[str]:
        """Names of the directories in `name`, sorted; none where it does not exist."""
        ...

    def files(self, name: str) -> list[str]:
        """Names of the files in `name`, sorted; none where it does not exist."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        ...

    def modified(self, name: str) -> float | None:
        """When a file was last written, in seconds of the storage's own clock; None where there is none.

        To be compared with other times of the same storage alone: no host's clock says the same.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return a whole small file. Raises MissingError."""
        ...

    def make_directory(self, name: str) -> None:
        """Make a directory with its parents, durably. There already is fine: many ranks do it."""
        ...

    def open(self, name: str) -> RangeFile:
        """Open a file for reading parts of it. Raises MissingError."""
        ...

    def create(self, name: str) -> GrowingFile:
        """Open a new file for appending. Its directory entry is durable only after `sync_directory`."""
        ...

    def sync_directory(self, name: str) -> None:
        """Make the entries of a directory durable."""
        ...

    def publish(self, name: str, content: bytes, *, is_private: bool = False) -> None:
        """Write a file so that it is there whole or not at all, whatever dies when, and durable on return.

        A private one is for its owner alone where the storage knows owners; who may read a bucket is the bucket's word.
        """
        ...

    def rename(self, old: str, new: str) -> bool:
        """Rename a small file durably; False where it is gone already. The old name ends last."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. Gone already is fine."""
        ...

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all that is in it. Gone already is fine, also when it goes meanwhile."""
        ...


def open_storage(location: str) -> Storage:
    """Open the storage at a path or URL; touches nothing yet. Raises ConfigError for a URL that cannot be storage."""
    if not is_url(location):
        return LocalStorage(Path(location))
    if problem := url_problem(location):
        raise ConfigError(f"{location} {problem}")
    scheme = location.partition("://")[0]
    try:
        # Its clients are large, and most jobs need none.
        from workers.checkpointing.object_storage import ObjectStorage, open_file_system

        return ObjectStorage(open_file_system(scheme), location)
    except ImportError as error:
        raise ConfigError(
            f"{location} needs the package {SCHEMES[scheme]}: pip install 'shardyard[{scheme}]'"
        ) from error
