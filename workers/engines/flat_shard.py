"""`FlatShard`: this rank's contiguous part of a tensor laid out row by row, as a tensor that knows its place in the whole.

DeepSpeed cuts parameters as flat intervals, across rows. Any interval is at most 2 * ndim - 1 boxes, and boxes are what
torch.distributed.checkpoint stores: so what one engine wrote so, any other reads, and the other way round.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Box = tuple[
    tuple[int, ...], tuple[int, ...], int
]  # offsets, sizes, and where its first element lies in the flat whole


def boxes_of(shape: Sequence[int], start: int, length: int) -> Iterator[Box]:
    """Cut elements [start, start + length) of a row-major tensor into boxes, in order. Pure."""
    if length <= 0:
        return
    if not shape:
        yield (), (), 0
        return
    row = math.prod(shape[1:])
    position, end = start, start + length
    if position % row:  # the rest of a row that begins before us
        stop = min(end, (position // row + 1) * row)
        yield from _within_row(shape, position, stop, row)
        position = stop
    if rows := (end - position) // row:
        yield (position // row, *(0 for _ in shape[1:])), (rows, *shape[1:]), position
        position += rows * row
    if position < end:  # the beginning of a row that goes on after us
        yield from _within_row(shape, position, end, row)


def _within_row(shape: Sequence[int], position: int, stop: int, row: int) -> Iterator[Box]:
    index = position // row
    for offsets, sizes, first in boxes_of(shape[1:], position - index * row, stop - position):
        yield (index, *offsets), (1, *sizes), index * row + first


class FlatShard(torch.Tensor):
    """Elements [start, start + local.numel()) of a tensor of `shape`; `local` is one-dimensional, and its memory is used.

    Only a place and a view: arithmetic on it is an error. Checkpointing asks it which boxes it holds.
    """

    local: torch.Tensor
    start: int

    @staticmethod
    def __new__(cls, local: torch.Tensor, shape: Sequence[int], start: int) -> "FlatShard":
        """Wrap `local` without a copy."""
        assert local.ndim == 1, local.shape
        assert start + local.numel() <= math.prod(shape) or local.numel() == 0, (shape, start, local.numel())
        shard: FlatShard = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=local.dtype, device=local.device, requires_grad=False
        )
        shard.local, shard.start = local, start
        return shard

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:  # type: ignore[override]
        """Let it be looked at, never computed with: a rank holds a part only."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise TypeError(f"{func} on a FlatShard: only this rank's part is here, take `.local`")

    def __repr__(self) -> str:  # type: ignore[override]
        """Show the place, not the values."""
        return f"FlatShard({list(self.shape)}, [{self.start}, {self.start + self.local.numel()}))"

    def __create_write_items__(self, name: str, _tensor: Any) -> list[WriteItem]:
        """See torch.distributed.checkpoint: one item for each box."""
        properties = TensorProperties(dtype=self.local.dtype)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """See torch.distributed.checkpoint: the boxes that this rank holds."""
        return [
            ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
            for offsets, sizes, _ in boxes_of(self.shape, self.start, self.local.numel())
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """See torch.distributed.checkpoint: the box at `index.offset`, the shard's own memory."""
        for offsets, sizes, first in boxes_of(self.shape, self.start, self.local.numel()):
            if torch.Size(offsets) == index.offset:
                return self.local.narrow(0, first - self.start, math.prod(sizes)).view(sizes)
        raise KeyError(index)
