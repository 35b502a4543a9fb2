"""Reading stored chunks, each verified before anybody uses a byte of it. Knows no torch."""

import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from workers.checkpointing.catalog import Damaged, checkpoint_storage, read_manifest
from workers.checkpointing.manifest_file import digest
from workers.checkpointing.storage import RangeFile
from workers.contract.location import join
from workers.contract.manifest import Chunk, Manifest
from workers.errors import DamagedCheckpointError, MissingError


class ChunkFiles:
    """The open files of one published checkpoint; a context manager. Opened, it outlives the checkpoint's deletion."""

    def __init__(self, run_dir: str, manifest: Manifest) -> None:
        self._storage = checkpoint_storage(run_dir)
        self._name = str(manifest.checkpoint)
        self._open: dict[str, RangeFile] = {}
        self._stack = ExitStack()
        self.manifest = manifest

    def open_all(self) -> Self:
        """Open every file now, so that a deletion that comes later does not matter."""
        for file in self.manifest.files:
            self._file(file)
        return self

    def read(self, chunk: Chunk) -> bytearray:
        """Return the bytes of a chunk. Raises DamagedCheckpointError where they are not what was written; StorageError."""
        content = self._file(chunk.file).read_range(chunk.start, chunk.length)
        where = f"{chunk.file}, bytes {chunk.start} to {chunk.start + chunk.length}"
        if len(content) != chunk.length:
            raise DamagedCheckpointError(self._name, f"{where}: the file ends early")
        if digest(content) != chunk.digest:
            raise DamagedCheckpointError(self._name, f"{where}: the digest does not match")
        return content

    def _file(self, name: str) -> RangeFile:
        if name not in self._open:
            try:
                file = self._storage.open(f"{self._name}/{name}")
            except MissingError as error:
                raise DamagedCheckpointError(self._name, f"{name} is missing") from error
            self._stack.callback(file.close)
            self._open[name] = file
        return self._open[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def open_checkpoint(run_dir: str, name: str) -> ChunkFiles:
    """Open the published checkpoint `name`. Raises DamagedCheckpointError; MissingError where it is not published here."""
    match read_manifest(run_dir, name):
        case Damaged(reason=reason):
            raise DamagedCheckpointError(name, reason)
        case None:
            raise MissingError(
                f"checkpoint {name} is not visible on host {socket.gethostname()}: "
                f"nothing is published at {join(checkpoint_storage(run_dir).location, name)}"
            )
        case Manifest() as manifest:
            return ChunkFiles(run_dir, manifest)
