"""Exact bytes of what lives on a rank all the time: the storages of its local tensors, each counted once."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor


def static_bytes(
    categories: Mapping[str, Iterable[torch.Tensor]], *, device: torch.device | None = None
) -> dict[str, int]:
    """Return the bytes of each category. A storage that several tensors share counts once, in the first category it is in.

    Of a sharded tensor only the local shard counts, with the padding that its storage holds. What does not lie on
    `device`, if one is named, is counted as `offloaded` instead, in one sum. Not collective.
    """
    seen: set[int] = set()
    found: dict[str, int] = {}
    offloaded: list[torch.Tensor] = []
    for name, tensors in categories.items():
        here: list[torch.Tensor] = []
        for tensor in map(_local, tensors):
            is_here = device is None or tensor.device.type == device.type
            (here if is_here else offloaded).append(tensor)
        found[name] = _new_bytes(here, seen)
    return found | ({"offloaded": _new_bytes(offloaded, seen)} if offloaded else {})


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
        storage = _local(tensor).detach().untyped_storage()
        if storage.nbytes() == 0 or storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        total += storage.nbytes()
    return total


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
