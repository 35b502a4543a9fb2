"""Token files: one header block of readable JSON, all token ids, and an index of documents; to be memory-mapped.

    4096 bytes   magic, JSON, spaces
    ids          `count` of uint16 or uint32, then zeros up to a multiple of 8
    starts       `num_documents` of int64: where each document begins
    edges        `num_edges` of int64, ascending: learnt tokens lie in [edges[0], edges[1]), [edges[2], edges[3]), ...

All little-endian. Files without edges are learnt from end to end. A file appears under its name only when it is
complete: it is written beside it, synced and renamed.
"""

import json
import os
import tempfile
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from workers.data.dataset import DataError
from workers.data.document import BadRow, Document
from workers.errors import StorageError

SUFFIX: Final = ".tokens"
NAMED_ROWS: Final = 3  # rows that were left out of which the header says where and why

_MAGIC: Final = b"shardyard-tokens 2\n"
_HEADER_BYTES: Final = 4096  # one page, so that the ids after it are aligned

Tokens = npt.NDArray[np.unsignedinteger]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHeader:
    """What the first block of a token file says about what follows."""

    dtype: str  # "uint16" or "uint32"
    count: int
    num_documents: int
    num_edges: int | None  # None: every token is learnt
    vocab_size: int  # every id is below it
    tokenizer: str  # two files of one name have ids of one meaning
    document_mark: int | None  # the id that begins each document
    digest: str  # "xxh3_128:<hex>" of ids, starts and edges
    num_bad_rows: int = 0  # of the source, left out
    bad_rows: tuple[str, ...] = ()  # the first of them

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return _HEADER_BYTES + self.ids_bytes + 8 * (self.num_documents + (self.num_edges or 0))

    @property
    def ids_bytes(self) -> int:
        """Size of the ids with the zeros after them."""
        return -(-self.count * np.dtype(self.dtype).itemsize // 8) * 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenFile:
    """A token file, mapped read-only: nothing is read until it is indexed."""

    header: TokenHeader
    ids: Tokens  # [count]
    starts: Places  # [num_documents]
    edges: Places | None  # [num_edges]

    def documents(self, start: int, stop: int) -> Places:
        """Return the number of the document that each token in [start, stop) is of."""
        return np.searchsorted(self.starts, np.arange(start, stop), side="right") - 1

    def is_learnt(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return, for each token in [start, stop), whether a model is to predict it."""
        if self.edges is None:
            return np.ones(stop - start, dtype=np.bool_)
        passed = np.searchsorted(self.edges, np.arange(start, stop), side="right")
        return np.equal(passed % 2, 1)


def write_token_file(
    path: Path,
    documents: Iterable[Document | BadRow],
    *,
    vocab_size: int,
    tokenizer: str,
    document_mark: int | None = None,
) -> TokenHeader:
    """Write `documents` one after the other as the token file `path`, replacing what was there; bad rows are counted.

    Holds one document and the index in memory (8 bytes a document, 16 an answer). Several writers of one path do no
    harm: the last complete one stays. Raises StorageError when the disk refuses.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b" " * _HEADER_BYTES)
            body = _Body(file, np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4"), vocab_size)
            for document in documents:
                body.add(document)
            header = body.close(tokenizer=tokenizer, document_mark=document_mark)
            file.seek(0)
            file.write(_header_block(header))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's own is the writer's alone, and other users' jobs read it, too
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write token file {path}: {error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return header


class _Body:
    """All of a token file but its header, in the order in which it is written."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[np.unsignedinteger], vocab_size: int) -> None:
        self._file, self._dtype, self._vocab_size = file, dtype, vocab_size
        self._digest = xxhash.xxh3_128()
        self._count = 0
        self._starts, self._edges, self._has_edges = array("q"), array("q"), False
        self._num_bad_rows, self._bad_rows = 0, list[str]()

    def add(self, document: Document | BadRow) -> None:
        """Write the ids; a document of none leaves no trace."""
        if isinstance(document, BadRow):
            self._num_bad_rows += 1
            if len(self._bad_rows) < NAMED_ROWS:
                self._bad_rows.append(str(document))
            return
        ids = document.ids
        if ids.size == 0:
            return
        assert 0 <= ids.min() <= ids.max() < self._vocab_size, (ids.min(), ids.max(), self._vocab_size)
        self._starts.append(self._count)
        self._has_edges |= document.is_learnt is not None
        self._edges.extend(self._count + edge for edge in _edges(document))
        self._write(ids.astype(self._dtype, copy=False).tobytes())
        self._count += ids.size

    def close(self, *, tokenizer: str, document_mark: int | None) -> TokenHeader:
        """Write the index, and return the header."""
        self._file.write(b"\0" * (-self._count * self._dtype.itemsize % 8))
        self._write(np.array(self._starts, dtype="<i8").tobytes())
        if self._has_edges:
            self._write(np.array(self._edges, dtype="<i8").tobytes())
        return TokenHeader(
            dtype=self._dtype.newbyteorder("=").name,
            count=self._count,
            num_documents=len(self._starts),
            num_edges=len(self._edges) if self._has_edges else None,
            vocab_size=self._vocab_size,
            tokenizer=tokenizer,
            document_mark=document_mark,
            digest=f"xxh3_128:{self._digest.hexdigest()}",
            num_bad_rows=self._num_bad_rows,
            bad_rows=tuple(self._bad_rows),
        )

    def _write(self, content: bytes) -> None:
        self._digest.update(content)
        self._file.write(content)


def _edges(document: Document) -> list[int]:
    """Where learning begins and ends within a document, in turn."""
    if document.is_learnt is None:
        return [0, document.ids.size]
    assert document.is_learnt.shape == document.ids.shape, (document.is_learnt.shape, document.ids.shape)
    padded = np.concatenate([[False], document.is_learnt, [False]])
    return [int(place) for place in np.flatnonzero(padded[1:] != padded[:-1])]


def read_header(path: Path) -> TokenHeader:
    """Read and check the header of `path` against the file's size. Raises DataError, naming what is wrong."""
    try:
        with path.open("rb") as file:
            block = file.read(_HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read token file {path}: {error.strerror}") from error
    if not block.startswith(_MAGIC):
        raise DataError(f"{path} is not a token file of this version: make one with `shardyard data prepare`")
    try:
        fields = json.loads(block[len(_MAGIC) :])
        header = TokenHeader(**{**fields, "bad_rows": tuple(fields.get("bad_rows", ()))})
        expected = header.file_bytes
    except (ValueError, TypeError) as error:
        raise DataError(f"token file {path} has a header that cannot be read: {error}") from error
    if size != expected:
        raise DataError(
            f"token file {path} has {size} bytes where its header says {expected}: it was cut or damaged"
        )
    return header


def open_token_file(path: Path) -> TokenFile:
    """Check the header of `path` and memory-map the rest. Raises DataError."""
    header = read_header(path)
    dtype = np.dtype(header.dtype).newbyteorder("<")
    if header.count == 0:  # mmap refuses a length of 0
        nowhere = np.empty(0, dtype=np.int64)
        return TokenFile(header=header, ids=np.empty(0, dtype=dtype), starts=nowhere, edges=None)
    mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=_HEADER_BYTES)
    index = mapped[header.ids_bytes :].view("<i8")
    return TokenFile(
        header=header,
        ids=mapped[: header.count * dtype.itemsize].view(dtype),
        starts=index[: header.num_documents],
        edges=None if header.num_edges is None else index[header.num_documents :],
    )


def _header_block(header: TokenHeader) -> bytes:
    block = _MAGIC + json.dumps(asdict(header), ensure_ascii=False).encode()
    assert len(block) < _HEADER_BYTES, header
    return block.ljust(_HEADER_BYTES - 1) + b"\n"
