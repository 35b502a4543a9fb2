"""Find and end every process that descends from an agent, wherever it went: by a mark in its environment.

The mark is set before the forkserver starts, so whatever a rank forks or runs carries it, detached or not. A process
that wipes its environment *and* detaches is the one that gets away.
"""

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final

MARK: Final = "SHARDYARD_AGENT"  # <pid>-<nonce> of the agent
_TRACKER: Final = b"multiprocessing.resource_tracker"  # ends by itself and cleans up behind the dead: spared


def marked(mark: str) -> list[int]:
    """Return the pids of all live processes that carry `mark`, the caller's own left out. About 5 ms."""
    wanted = f"{MARK}={mark}".encode()
    return [
        pid
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        if pid != os.getpid() and _carries(pid, wanted)
    ]


def sweep(mark: str, *, spare: Collection[int] = ()) -> list[int]:
    """Send SIGKILL to every process that carries `mark`, but for `spare`; return their pids."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in marked(mark) if pid not in spare and _kill(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        if wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        return _TRACKER not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone, a zombie, or somebody else's
        return False


def _kill(pid: int, wanted: bytes) -> bool:
    """Kill through a descriptor, and look again once it is held: the number may have passed to another process."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if _carries(pid, wanted):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
