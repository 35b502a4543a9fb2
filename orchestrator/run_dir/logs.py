"""Logs of ranks and drivers: which there are, and any part of one as text."""

import codecs
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.errors import FileNotServedError
from orchestrator.job_queries import LogFile, LogName, LogPart
from workers.contract.rundir import driver_log, logs_dir, rank_log

_RANK_LOG: Final = re.compile(r"g(\d+)\.a(\d+)/r(\d+)/rank-(\d+)\.log")
_DRIVER_LOG: Final = re.compile(r"driver\.g(\d+)\.log")
_PATTERNS: Final = ("driver.g*.log", "g*.a*/r*/rank-*.log")


def list_logs(run_dir: str) -> tuple[LogFile, ...]:
    """Every log, oldest generation, attempt and round first, a driver before its ranks."""
    root = logs_dir(run_dir)
    found = (
        file
        for pattern in _PATTERNS
        for path in root.glob(pattern)
        if (file := _describe(root, path)) is not None
    )
    return tuple(sorted(found, key=lambda file: _order(file.name)))


def _order(name: LogName) -> tuple[int, int, int, int]:
    none = -1
    return (
        name.generation,
        none if name.attempt is None else name.attempt,
        none if name.round is None else name.round,
        none if name.rank is None else name.rank,
    )


def _describe(root: Path, path: Path) -> LogFile | None:
    name = _parse(path.relative_to(root).as_posix())
    try:
        status = path.lstat()
    except OSError:  # deleted in between
        return None
    if name is None or not stat.S_ISREG(status.st_mode):
        return None
    modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return LogFile(name=name, size_bytes=status.st_size, modified_at=modified_at)


def _parse(relative: str) -> LogName | None:
    if found := _RANK_LOG.fullmatch(relative):
        generation, attempt, round_, rank = map(int, found.groups())
        return LogName(generation=generation, attempt=attempt, round=round_, rank=rank)
    if found := _DRIVER_LOG.fullmatch(relative):
        return LogName(generation=int(found.group(1)))
    return None


def _path(run_dir: str, name: LogName) -> Path:
    """Build the path from numbers alone: no text of a caller becomes a file name."""
    if name.attempt is None or name.round is None or name.rank is None:
        return driver_log(run_dir, generation=name.generation)
    return rank_log(
        run_dir, generation=name.generation, attempt=name.attempt, round_=name.round, rank=name.rank
    )


def read_log(run_dir: str, name: LogName, *, offset: int, limit_bytes: int) -> LogPart:
    """Read [offset, offset + limit_bytes) as text; a negative offset counts from the end. Raises FileNotServedError.

    Bytes that are no UTF-8 are replaced; a character that the end cuts is left for the next part.
    """
    assert limit_bytes > 0, limit_bytes
    descriptor = _open(run_dir, name)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        file.seek(start)
        data = file.read(max(limit_bytes, 4))  # 4: one whole character, so that every part gets on
    if offset < 0 and start > 0:
        skipped = _continuation_bytes(data)
        data, start = data[skipped:], start + skipped
    text, used = _decode(data)
    return LogPart(text=text, offset=start, next_offset=start + used, size_bytes=size)


def _open(run_dir: str, name: LogName) -> int:
    path = _path(run_dir, name)
    root = logs_dir(os.path.realpath(run_dir))
    if Path(os.path.realpath(path)) != root / path.relative_to(logs_dir(run_dir)):
        raise FileNotServedError(f"{path.name} is a link, or lies behind one")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise FileNotServedError(f"there is no log {path.relative_to(run_dir)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotServedError(f"{path.name} is no file")
    return descriptor


def _continuation_bytes(data: bytes) -> int:
    """Count the rest of a character that began before the part."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


def _decode(data: bytes) -> tuple[str, int]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])
