"""Token files: one header block of readable JSON, then all token ids, little-endian, to be memory-mapped.

A file appears under its name only when it is complete: it is written beside it, synced and renamed.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from workers.data.dataset import DataError
from workers.errors import StorageError

SUFFIX: Final = ".tokens"
_MAGIC: Final = b"shardyard-tokens 1\n"
_HEADER_BYTES: Final = 4096  # magic, JSON, spaces; one page, so that the ids after it are aligned

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHeader:
    """What the first block of a token file says about the ids after it."""

    dtype: str  # "uint16" or "uint32"
    count: int
    vocab_size: int  # every id is below it
    tokenizer: str
    digest: str  # "xxh3_128:<hex>" of the ids' bytes


def write_token_file(
    path: Path, parts: Iterable[npt.NDArray[np.integer]], *, vocab_size: int, tokenizer: str
) -> TokenHeader:
    """Write `parts` one after the other as the token file `path`, replacing what was there. Holds one part in memory.

    Several writers of one path do no harm: the last complete one stays. Raises StorageError when the disk refuses.
    """
    dtype = np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        digest, count = xxhash.xxh3_128(), 0
        with os.fdopen(descriptor, "wb") as file:
            file.write(b" " * _HEADER_BYTES)
            for part in parts:
                assert part.size == 0 or 0 <= part.min() <= part.max() < vocab_size, (part.max(), vocab_size)
                payload = part.astype(dtype, copy=False).tobytes()
                digest.update(payload)
                count += part.size
                file.write(payload)
            header = TokenHeader(
                dtype=dtype.newbyteorder("=").name,
                count=count,
                vocab_size=vocab_size,
                tokenizer=tokenizer,
                digest=f"xxh3_128:{digest.hexdigest()}",
            )
            file.seek(0)
            file.write(_header_block(header))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write token file {path}: {error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return header


def read_header(path: Path) -> TokenHeader:
    """Read and check the header of `path` against the file's size. Raises DataError, naming what is wrong."""
    try:
        with path.open("rb") as file:
            block = file.read(_HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read token file {path}: {error.strerror}") from error
    if not block.startswith(_MAGIC):
        raise DataError(f"{path} is not a token file: make one with `shardyard-worker data prepare`")
    try:
        header = TokenHeader(**json.loads(block[len(_MAGIC) :]))
        expected = _HEADER_BYTES + header.count * np.dtype(header.dtype).itemsize
    except (ValueError, TypeError) as error:
        raise DataError(f"token file {path} has a header that cannot be read: {error}") from error
    if size != expected:
        raise DataError(
            f"token file {path} has {size} bytes where its header says {expected}: it was cut or damaged"
        )
    return header


def map_tokens(path: Path, header: TokenHeader) -> Tokens:
    """Memory-map the ids of `path`, shape [count], read-only. Nothing is read until it is indexed."""
    dtype = np.dtype(header.dtype).newbyteorder("<")
    if header.count == 0:
        return np.empty(0, dtype=dtype)  # mmap refuses a length of 0
    return np.memmap(path, dtype=dtype, mode="r", offset=_HEADER_BYTES, shape=(header.count,))


def _header_block(header: TokenHeader) -> bytes:
    block = _MAGIC + json.dumps(asdict(header)).encode()
    assert len(block) < _HEADER_BYTES, header
    return block.ljust(_HEADER_BYTES - 1) + b"\n"
