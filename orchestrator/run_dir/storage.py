"""The storage of a run as the control plane sees it: a path or an object store, through fsspec.

It reads small files there and writes nothing but holds: a name that keeps a checkpoint from being deleted.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

from fsspec import AbstractFileSystem, filesystem

from orchestrator.errors import StorageUnavailableError
from workers.contract.location import SCHEMES, is_url, join
from workers.contract.rundir import HOLDS

_UNCACHED: Final = {"use_listings_cache": False}  # drivers change what lies there at any moment

Answer = TypeVar("Answer")


class RunStorage:
    """What lies on the storage of one run. Every method raises StorageUnavailableError where it does not answer."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._fs = _file_system(location)

    def names(self, directory: str) -> list[str]:
        """What lies in a directory, sorted; nothing where there is none."""
        found: list[str] = self._ask(
            lambda: self._fs.ls(join(self.location, directory), detail=False), missing=[]
        )
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def read(self, name: str) -> bytes | None:
        """A whole small file; None where there is none."""
        return self._ask(lambda: self._fs.cat_file(join(self.location, name)), missing=None)

    def modified(self, name: str) -> datetime | None:
        """When a file was last written, by the storage's own clock; None where there is none."""
        return self._ask(lambda: self._fs.modified(join(self.location, name)), missing=None)

    def hold(self, checkpoint: str, holder: str) -> None:
        """Keep a checkpoint from being deleted; look that it is still published only afterwards."""
        directory = join(self.location, HOLDS, checkpoint)
        self._ask(lambda: self._fs.makedirs(directory, exist_ok=True), missing=None)
        self._ask(lambda: self._fs.pipe_file(join(directory, holder), b""), missing=None)

    def release(self, checkpoint: str, holder: str) -> None:
        """Let go of it; who does not hold it may do so, too."""
        self._ask(lambda: self._fs.rm_file(join(self.location, HOLDS, checkpoint, holder)), missing=None)

    def _ask(self, question: Callable[[], Any], *, missing: Answer) -> Any | Answer:
        try:
            return question()
        except (FileNotFoundError, NotADirectoryError):
            return missing
        except Exception as error:  # each client has errors of its own, and none of them is ours
            raise StorageUnavailableError(f"{self.location}: {str(error) or type(error).__name__}") from error


def _file_system(location: str) -> AbstractFileSystem:
    if not is_url(location):
        return filesystem("file")
    scheme = location.partition("://")[0]
    assert scheme in SCHEMES, f"{location} was let in at submit"
    try:
        return filesystem(scheme, **_UNCACHED)
    except ImportError as error:
        raise StorageUnavailableError(
            f"{location} needs the package {SCHEMES[scheme]} beside the service: pip install 'shardyard[{scheme}]'"
        ) from error
