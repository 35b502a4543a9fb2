"""Boxes of a tensor: cutting one into parts of a capped size. Pure.

A box is (offsets, sizes) in its tensor, stored row-major on its own; so every way of cutting is legal.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

CHUNK_CAP_BYTES: Final = (
    64 * 1024 * 1024
)  # a reader loads and verifies whole chunks: this is what it holds beside its shard

Box = tuple[tuple[int, ...], tuple[int, ...]]


def split_box(
    offsets: Sequence[int], sizes: Sequence[int], *, item_bytes: int, cap_bytes: int = CHUNK_CAP_BYTES
) -> Iterator[Box]:
    """Cut a box along its outermost dim, and along inner ones where a single row is too large, in row-major order."""
    offsets, sizes = tuple(offsets), tuple(sizes)
    dim = next((dim for dim, size in enumerate(sizes) if size > 1), None)
    if dim is None or math.prod(sizes) * item_bytes <= cap_bytes:
        yield offsets, sizes
        return
    row_bytes = math.prod(sizes[dim + 1 :]) * item_bytes
    rows = max(1, cap_bytes // row_bytes)
    for first in range(0, sizes[dim], rows):
        part_offsets = (*offsets[:dim], offsets[dim] + first, *offsets[dim + 1 :])
        part_sizes = (*sizes[:dim], min(rows, sizes[dim] - first), *sizes[dim + 1 :])
        yield from split_box(part_offsets, part_sizes, item_bytes=item_bytes, cap_bytes=cap_bytes)
