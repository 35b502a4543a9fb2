"""Directories of files that end with the process that made them, even if it is killed. Knows no torch.

Each holds a file that its owner keeps locked for as long as it lives. Whoever comes next, or cleans up behind a rank,
removes those whose lock is free: no names to remember, no processes to ask, and other jobs' directories are left alone.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "shardyard-"
_LOCK: Final = "in-use"


def claim(parent: Path) -> Path:
    """Return a new directory below `parent`, this process's until it ends; first sweep. Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    sweep(parent)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        descriptor = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)  # open until the process ends
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (directory / _LOCK).exists():  # else somebody swept before we had the lock
            return directory
        os.close(descriptor)


def sweep(parent: Path) -> list[Path]:
    """Remove the directories below `parent` whose owners are gone, and return them. Never waits, never raises."""
    with suppress(OSError):
        return [directory for directory in sorted(parent.glob(f"{_PREFIX}*")) if _remove(directory)]
    return []


def _remove(directory: Path) -> bool:
    """Remove `directory` unless it is in use. One without a lock yet is just being made."""
    with suppress(OSError):
        descriptor = os.open(directory / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
        finally:
            os.close(descriptor)
        return True
    return False
