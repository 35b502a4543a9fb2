"""Exact bytes of what lives on a rank all the time: the storages of its local tensors, each counted once."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor


def static_bytes(categories: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, int]:
    """Return the bytes of each category. A storage that several tensors share counts once, in the first category it is in.

    Of a sharded tensor only the local shard counts, with the padding that its storage holds. Not collective.
    """
    seen: set[int] = set()
    return {name: _new_bytes(tensors, seen) for name, tensors in categories.items()}


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages behind `tensors`."""
    return _new_bytes(tensors, set())


def resident_bytes() -> int:
    """Return the resident set size of this process. Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _new_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.detach().untyped_storage()
        if storage.nbytes() == 0 or storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        total += storage.nbytes()
    return total
