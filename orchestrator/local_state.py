"""Files of the state directory that `up` and `down` share: one lock, private writes, the end of a log."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.errors import OrchestratorError

_LOG_TAIL_BYTES: Final = 2000


class LocalClusterError(OrchestratorError):
    """The cluster or the service did not start, or would not end: what happened, and where its log is."""


@contextlib.contextmanager
def lock(home: Path) -> Iterator[None]:
    """One `up` or `down` at a time for a state directory; the lock dies with its holder."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home / "local.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, text: str) -> None:
    """Replace `path` atomically by a file that only its owner can read."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        text = ""
    return f"see {log}" + (f", which ends:\n{text}" if text else "")
