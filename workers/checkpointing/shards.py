"""Storage of torch.distributed.checkpoint (DCP) in our format: raw chunks, digests, a manifest; no pickle on any disk.

DCP's planner decides what each rank writes or reads; here is only how bytes lie. Written for torch 2.13.
"""

import dataclasses
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from workers.checkpointing.chunks import ChunkFiles
from workers.checkpointing.manifest_file import contradiction, digest, encode
from workers.checkpointing.storage import GrowingFile, Storage
from workers.contract.manifest import MANIFEST_NAME, Chunk, Manifest, StoredTensor


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that manifests use: `float32`, not `torch.float32`."""
    return str(dtype).removeprefix("torch.")


class ShardWriter(StorageWriter):
    """Writes one checkpoint: a file per rank, then, on the coordinator, the manifest, which is the commit.

    `head` is the manifest without tensors and files. `may_publish` is asked right before the commit and raises if not.
    """

    def __init__(self, storage: Storage, head: Manifest, may_publish: Callable[[], None]) -> None:
        assert sys.byteorder == "little", "the format is little-endian"
        self._storage = storage
        self._head = head
        self._may_publish = may_publish
        self._directory = str(head.checkpoint)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to reset: one writer writes one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the directory; every rank does, since none may wait for another here."""
        self._storage.make_directory(self._directory)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Change nothing."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank the name of its file."""
        return [dataclasses.replace(plan, storage_data=f"rank-{rank}.bin") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Append this rank's chunks to its file; durable when the future is there. A rank without chunks has no file."""
        results: Future[list[WriteResult]] = Future()
        if not plan.items:
            results.set_result([])
            return results
        with self._storage.create(f"{self._directory}/{plan.storage_data}") as file:
            results.set_result([_append(file, plan.storage_data, item, planner) for item in plan.items])
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish: on the coordinator, after every rank's file is durable."""
        chunks: dict[str, list[Chunk]] = defaultdict(list)
        files: dict[str, int] = {}
        for result in (result for of_rank in results for result in of_rank):
            chunk: Chunk = result.storage_data
            chunks[result.index.fqn].append(chunk)
            files[chunk.file] = max(files.get(chunk.file, 0), chunk.start + chunk.length)
        tensors = {
            name: _stored_tensor(stored, chunks[name])
            for name, stored in sorted(metadata.state_dict_metadata.items())
        }
        manifest = self._head.model_copy(update={"tensors": tensors, "files": files})
        problem = contradiction(manifest)
        assert problem is None, problem
        self._storage.sync_directory(self._directory)
        self._may_publish()
        self._storage.publish(f"{self._directory}/{MANIFEST_NAME}", encode(manifest))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never chosen by DCP on its own: a manifest needs more than a path."""
        return False


def _append(file: GrowingFile, name: str, item: WriteItem, planner: SavePlanner) -> WriteResult:
    assert item.tensor_data is not None
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor)
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    chunk = Chunk(
        offsets=tuple(item.tensor_data.chunk.offsets),
        sizes=tuple(item.tensor_data.chunk.sizes),
        file=name,
        start=file.size_bytes,
        length=content.nbytes,
        digest=digest(content),
    )
    file.append(content)
    return WriteResult(index=item.index, size_in_bytes=content.nbytes, storage_data=chunk)


def _stored_tensor(stored: Any, chunks: list[Chunk]) -> StoredTensor:
    assert isinstance(stored, TensorStorageMetadata)
    ordered = sorted(chunks, key=lambda chunk: chunk.offsets)
    return StoredTensor(
        dtype=dtype_name(stored.properties.dtype), shape=tuple(stored.size), chunks=tuple(ordered)
    )


class ShardReader(StorageReader):
    """Reads one published checkpoint; each chunk that a rank needs is read whole and verified."""

    def __init__(self, files: ChunkFiles) -> None:
        self._files = files
        self._chunks = {
            MetadataIndex(name, chunk.offsets): (chunk, getattr(torch, tensor.dtype))
            for name, tensor in files.manifest.tensors.items()
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to reset: one reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return DCP's view of the manifest."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    properties=TensorProperties(dtype=getattr(torch, tensor.dtype)),
                    size=torch.Size(tensor.shape),
                    chunks=[
                        ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
                        for chunk in tensor.chunks
                    ],
                )
                for name, tensor in self._files.manifest.tensors.items()
            }
        )

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Change nothing."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Change nothing."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planned tensors in place. Raises DamagedCheckpointError, StorageError."""
        items: dict[MetadataIndex, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            items[item.storage_index].append(item)
        for index, wanted in items.items():
            self._fill(index, wanted, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _fill(self, index: MetadataIndex, wanted: list[ReadItem], planner: LoadPlanner) -> None:
        chunk, dtype = self._chunks[index]
        stored = torch.frombuffer(self._files.read(chunk), dtype=dtype).view(chunk.sizes)
        for item in wanted:
            source = stored
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            assert target.shape == source.shape, (index, target.shape, source.shape)
            target.copy_(source)
            planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never chosen by DCP on its own."""
        return False
