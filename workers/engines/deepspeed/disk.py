"""What a node must have for files of offloaded state: direct access, room, and memory that may be locked.

DeepSpeed 0.19.8 looks at none of it: it dies without a word, or goes on with what was never written.
"""

import ctypes
import mmap
import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from workers.errors import ConfigError
from workers.scratch import claim

_UNIT_BYTES: Final = 1024  # DeepSpeed rounds files up to it


def scratch_directory(nvme_path: str) -> Path:
    """Return a directory for this rank's files, which go when it ends. Raises ConfigError where they cannot lie there."""
    try:
        directory = claim(Path(nvme_path))
    except OSError as error:
        raise ConfigError(f"engine.offload.nvme_path {nvme_path}: {error.strerror or error}") from error
    probe = directory / "probe"
    try:
        _write_directly(probe)
    except OSError as error:
        raise ConfigError(
            f"engine.offload.nvme_path {nvme_path}: its file system takes no direct writes of {_UNIT_BYTES} bytes ({error.strerror}); "
            "name a directory on a local disk"
        ) from error
    finally:
        probe.unlink(missing_ok=True)
    return directory


def _write_directly(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page, memoryview(page) as view:
            os.write(descriptor, view[:_UNIT_BYTES])
    finally:
        os.close(descriptor)


def check_lockable(num_bytes: int) -> None:
    """Raise ConfigError where this process may not lock `num_bytes`: DeepSpeed would die of it without a word."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    if not _can_lock(num_bytes):
        raise ConfigError(
            f"engine.offload: nvme locks {num_bytes / 1e6:.0f} MB of memory for its buffers, more than a process may "
            "here; raise the limit on the nodes (`ulimit -l`, LimitMEMLOCK, or --ulimit memlock=-1)"
        )


def _can_lock(num_bytes: int) -> bool:
    libc = ctypes.CDLL(None)
    try:
        memory = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE))
    except OSError:  # not even so much address space
        return False
    with memory:
        view = ctypes.c_char.from_buffer(memory)
        address, size = ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(memory))
        is_locked: bool = libc.mlock(address, size) == 0
        if is_locked:
            libc.munlock(address, size)
        del view
    return is_locked


def check_written(sizes: Mapping[str, int]) -> None:
    """Raise ConfigError unless each file is as large on disk as it has to be. After that, room cannot run out.

    Files are then overwritten in place, which takes no new room, but on a file system that copies on write.
    """
    short = [(path, size) for path, size in sizes.items() if _bytes_on_disk(path) < size]
    if short:
        path, size = short[0]
        raise ConfigError(
            f"engine.offload.nvme_path: {len(short)} of {len(sizes)} files were not written whole, the first of them "
            f"{path}: {_bytes_on_disk(path)} of {size} bytes; state takes {sum(sizes.values()) / 1e9:.1f} GB of each rank: "
            "make room there"
        )


def _bytes_on_disk(path: str) -> int:
    try:
        found = os.stat(path)  # noqa: PTH116 -- DeepSpeed's own paths, as it has them
    except OSError:
        return 0
    return min(found.st_size, found.st_blocks * 512)
