"""Staging: a rank's own pieces of the state in buffers that are made once and reused, and the plan to write them.

The copy into them is all that training waits for. A tensor says itself which boxes this rank holds, through DCP's
`_Checkpointable` methods (`__create_write_items__`, `__get_tensor_shard__`), as DTensor does; a tensor without them is
whole on every rank, and DCP's planner then lets one rank write it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from workers.checkpointing.boxes import split_box


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One box that this rank holds, and its buffer."""

    name: str
    index: MetadataIndex
    offsets: torch.Size
    buffer: torch.Tensor


class Staging:
    """Buffers for the pieces of one state. The names and layout of the state never change within a round."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._pieces = [piece for name, tensor in state.items() for piece in _pieces_of(name, tensor)]
        self._shapes = {name: tensor.shape for name, tensor in state.items()}
        self.items: list[WriteItem] = []  # what this rank offers to write, in chunks of a capped size
        self.staged: dict[MetadataIndex, torch.Tensor] = {}  # the staged tensor of each
        for piece in self._pieces:
            self._add_chunks(piece)

    def copy(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the state as it is now; on return it may change. Waits for the device, if there is one."""
        assert {name: tensor.shape for name, tensor in state.items()} == self._shapes, (
            "the state changed its layout"
        )
        with torch.no_grad():
            for piece in self._pieces:
                if piece.buffer.numel() > 0:
                    piece.buffer.copy_(_local(state[piece.name], piece.index), non_blocking=True)
        if any(piece.buffer.is_pinned() for piece in self._pieces):
            torch.cuda.current_stream().synchronize()

    def _add_chunks(self, piece: _Piece) -> None:
        sizes, item_bytes = piece.buffer.shape, piece.buffer.element_size()
        for part_offsets, part_sizes in split_box(piece.offsets, sizes, item_bytes=item_bytes):
            item = _write_item(piece, self._shapes[piece.name], part_offsets, part_sizes)
            self.items.append(item)
            self.staged[item.index] = _part(piece, part_offsets, part_sizes)


def _pieces_of(name: str, tensor: torch.Tensor) -> Iterator[_Piece]:
    if tensor.numel() == 0:  # keeps its place in the manifest, at one well-known box
        zero = torch.Size([0] * tensor.dim())
        empty = torch.empty(tensor.shape, dtype=tensor.dtype)
        yield _Piece(name=name, index=MetadataIndex(name, zero), offsets=zero, buffer=empty)
        return
    for index, offsets, sizes in _boxes(name, tensor):
        if 0 not in sizes:  # a rank beyond the last row of a tensor holds nothing of it
            on_device = _local(tensor, index).device.type == "cuda"
            buffer = torch.empty(sizes, dtype=tensor.dtype, pin_memory=on_device)
            yield _Piece(name=name, index=index, offsets=offsets, buffer=buffer)


def _boxes(name: str, tensor: Any) -> Iterator[tuple[MetadataIndex, torch.Size, torch.Size]]:
    if not hasattr(tensor, "__create_write_items__"):
        origin = torch.Size([0] * tensor.dim())
        yield MetadataIndex(name, origin), origin, tensor.shape
        return
    for item in tensor.__create_write_items__(name, tensor):
        yield item.index, item.tensor_data.chunk.offsets, item.tensor_data.chunk.sizes


def _local(tensor: Any, index: MetadataIndex) -> torch.Tensor:
    if hasattr(tensor, "__get_tensor_shard__"):
        shard: torch.Tensor = tensor.__get_tensor_shard__(index)
        return shard
    assert isinstance(tensor, torch.Tensor)
    return tensor.detach()


def _write_item(
    piece: _Piece, shape: torch.Size, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
    return WriteItem(
        index=MetadataIndex(piece.name, offsets),
        type=WriteItemType.SHARD,  # also for whole tensors: only shards may come in several chunks
        tensor_data=TensorWriteData(
            chunk=chunk, properties=TensorProperties(dtype=piece.buffer.dtype), size=shape
        ),
    )


def _part(piece: _Piece, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    part = piece.buffer
    for dim, (offset, base, size) in enumerate(zip(offsets, piece.offsets, sizes, strict=True)):
        part = part.narrow(dim, offset - base, size)
    return part


class StagedPlanner(DefaultSavePlanner):
    """DCP's planner (each replicated box is written by one rank, evenly) over what was staged."""

    def __init__(self, staging: Staging) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._staging = staging

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take nothing from the state: it was staged."""
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """Offer every staged chunk."""
        self.plan = SavePlan(list(self._staging.items))
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """Return the staged tensor of a chunk."""
        return self._staging.staged[write_item.index]
