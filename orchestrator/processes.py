"""Processes that we start and later end: each with a session of its own and a mark that its children inherit.

Ended is whoever can be shown to come of the process we started; nothing is ever looked up by name.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from workers.contract.base import Message

MARK_ENV: Final = "SHARDYARD_PROCESS_MARK"
_GONE: Final = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
_RESCAN_SECONDS: Final = 0.2


class Owned(Message):
    """A process that we started, and the mark that tells it and its children from all others, for ever."""

    pid: int
    mark: str


class Ended(Message):
    """What ending a process came to: how many processes were there, and which pids would not go."""

    num_found: int
    survivors: tuple[int, ...] = ()


def new_mark() -> str:
    """Return a mark that no other process has."""
    return secrets.token_hex(16)


def spawn(
    command: Sequence[str], *, mark: str, environment: Mapping[str, str], log: Path, directory: Path
) -> Owned:
    """Start `command` in a session of its own, so that a terminal's Ctrl-C does not reach it.

    It outlives us; its output goes to the end of `log`, which only its owner can read. Raises OSError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        process = subprocess.Popen(
            list(command),
            env={**environment, MARK_ENV: mark},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # detached on purpose: Popen would warn of a child that outlives it
    return Owned(pid=process.pid, mark=mark)


def is_running(owned: Owned) -> bool:
    """Whether the process we started is still there: a recycled pid does not carry our mark."""
    try:
        process = psutil.Process(owned.pid)
        return _is_live(process) and _is_of(process, owned.mark, owned.pid)
    except _GONE:
        return False


def family(mark: str, *, session: int | None = None) -> list[psutil.Process]:
    """Return every live process that carries `mark` or descends from one that does.

    A process that renames itself, as some of Ray's do, overwrites the mark, and once its parent is dead only its
    session tells where it came from: with `session`, those of it that have no environment to read count too.
    Costs one read of /proc for each process of the machine.
    """
    members: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid in members or process.pid == os.getpid() or not _is_of(process, mark, session):
            continue
        members[process.pid] = process
        with contextlib.suppress(*_GONE):
            members.update({child.pid: child for child in process.children(recursive=True)})
    return [process for process in members.values() if _is_live(process)]


def end(owned: Owned, *, grace_seconds: float, kill_seconds: float = 10.0) -> Ended:
    """Ask the process to end, wait `grace_seconds`, then kill what is left of its family until none is.

    Safe to repeat, and when the process itself is long gone. At most `grace_seconds + kill_seconds`.
    """
    seen = {process.pid: process for process in family(owned.mark, session=owned.pid)}
    found = set(seen)
    if is_running(owned):
        with contextlib.suppress(*_GONE):
            os.kill(owned.pid, signal.SIGTERM)
        _wait([seen[owned.pid]] if owned.pid in seen else [psutil.Process(owned.pid)], grace_seconds)
    deadline = time.monotonic() + kill_seconds
    while True:
        seen.update({process.pid: process for process in family(owned.mark, session=owned.pid)})
        found |= set(seen)
        left = [process for process in seen.values() if _is_live(process)]
        if not left or time.monotonic() > deadline:
            return Ended(num_found=len(found), survivors=tuple(sorted(process.pid for process in left)))
        for process in left:
            with contextlib.suppress(*_GONE):
                process.kill()  # psutil checks the start time first: never a recycled pid
        _wait(left, _RESCAN_SECONDS)


def _is_of(process: psutil.Process, mark: str, session: int | None) -> bool:
    """Whether the process itself shows that it is ours. One in a stranger's session of the same id has an environment.

    For an instant after its start, before the kernel has laid it out, ours has none to read either.
    """
    environment = _environment(process)
    if environment:
        return environment.get(MARK_ENV) == mark
    with contextlib.suppress(OSError):
        return environment is not None and os.getsid(process.pid) == session
    return False


def _environment(process: psutil.Process) -> Mapping[str, str] | None:
    """The environment that the process was started with, empty if it overwrote it; None if we may not look."""
    try:
        environment: Mapping[str, str] = process.environ()
    except (*_GONE, OSError):
        return None
    return environment


def _is_live(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except _GONE:
        return False


def _wait(processes: Iterable[psutil.Process], seconds: float) -> None:
    """Wait until all are gone, at most `seconds`; reaps those that are our children."""
    psutil.wait_procs(list(processes), timeout=seconds)
