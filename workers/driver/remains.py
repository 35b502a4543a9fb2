"""Processes of a job on the driver's own node that Ray has been told to end and has not ended yet."""

import os
import time
from pathlib import Path
from typing import Final

from workers.contract.launch import LAUNCH_ENV

_LOOK_SECONDS: Final = 0.05


def wait_for_the_end(job_id: str, *, seconds: float) -> list[int]:
    """Wait until none of Ray's workers of this job runs here, at most `seconds`; return the pids of those that do.

    Ray starts workers ahead and ends those of a driver that has left a moment later: one that was just starting up is in
    none of its lists.
    """
    deadline = time.monotonic() + seconds
    while (left := _workers_of(job_id)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return sorted(left)


def _workers_of(job_id: str) -> set[int]:
    """Find processes that carry the job's launch request, but for this one and those above it."""
    above = _above(os.getpid())
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - above
    return {pid for pid in pids if _carries(pid, job_id)}


def _carries(pid: int, job_id: str) -> bool:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
        is_worker = b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # gone, a zombie, or somebody else's
        return False
    wanted = f"{LAUNCH_ENV}=".encode()
    return is_worker and any(
        entry.startswith(wanted) and f'"{job_id}"'.encode() in entry for entry in content.split(b"\0")
    )


def _above(pid: int) -> set[int]:
    found = set[int]()
    while pid > 0:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            break
    return found
