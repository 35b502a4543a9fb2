"""The index of a directory of token files: what is in it, written last, so that a directory is whole or not at all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from workers.contract.base import Message
from workers.data.dataset import DataError
from workers.data.token_file import NAMED_ROWS, SUFFIX, TokenHeader, read_header

INDEX_NAME: Final = "index.json"


class IndexedFile(Message):
    """One token file by its name in the directory."""

    name: str
    tokens: int
    documents: int
    digest: str


class TokenIndex(Message):
    """What `data prepare` wrote, and of what."""

    format: Literal["shardyard-token-index 1"] = "shardyard-token-index 1"
    source: dict[str, Any]  # the data section
    tokenizer: str
    vocab_size: int
    tokens: int
    documents: int
    bad_rows: int  # of the source, left out
    first_bad_rows: tuple[str, ...] = ()
    files: tuple[IndexedFile, ...]


def index_of(source: dict[str, Any], headers: Sequence[TokenHeader]) -> TokenIndex:
    """Return the index of the files with these headers, in their order."""
    return TokenIndex(
        source=source,
        tokenizer=headers[0].tokenizer,
        vocab_size=headers[0].vocab_size,
        tokens=sum(header.count for header in headers),
        documents=sum(header.num_documents for header in headers),
        bad_rows=sum(header.num_bad_rows for header in headers),
        first_bad_rows=tuple(row for header in headers for row in header.bad_rows)[:NAMED_ROWS],
        files=tuple(
            IndexedFile(
                name=part_name(number),
                tokens=header.count,
                documents=header.num_documents,
                digest=header.digest,
            )
            for number, header in enumerate(headers)
        ),
    )


def part_name(number: int) -> str:
    """Return the name of the 0-based part."""
    return f"part-{number:05d}{SUFFIX}"


def cut_into_parts(sizes: Sequence[int], *, part_bytes: int) -> list[range]:
    """Cut files of these sizes into runs of at least `part_bytes` each, but for the last: a file is never parted.

    A function of the sizes alone: any cluster writes the same parts.
    """
    parts, first, filled = list[range](), 0, 0
    for number, size in enumerate(sizes, start=1):
        filled += size
        if filled >= part_bytes or number == len(sizes):
            parts.append(range(first, number))
            first, filled = number, 0
    return parts


def token_files(path: Path) -> Sequence[Path]:
    """Return the token files that `path` names: itself, those that its index lists, or without one all by name.

    Raises DataError, also for a file that is not the one that the index means.
    """
    path = path.expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"data.path: there is no file or directory {path.absolute()} on this node")
    if (path / INDEX_NAME).is_file():
        return _indexed_files(path)
    found = sorted(
        file for file in path.glob(f"*{SUFFIX}") if file.is_file() and not file.name.startswith(".")
    )
    if not found:
        raise DataError(f"data.path: no *{SUFFIX} file lies in {path.absolute()}")
    return found


def _indexed_files(directory: Path) -> Sequence[Path]:
    index = read_index(directory)
    for file in index.files:
        found = read_header(directory / file.name).digest
        if found != file.digest:
            raise DataError(
                f"data.path: {directory / file.name} is not the file that {INDEX_NAME} lists "
                f"({found} instead of {file.digest}): prepare the data anew"
            )
    return [directory / file.name for file in index.files]


def read_index(directory: Path) -> TokenIndex:
    """Read the index of `directory`. Raises DataError."""
    path = directory / INDEX_NAME
    try:
        return TokenIndex.from_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"data.path: cannot read {path}: {error.strerror}") from error
    except (ValidationError, json.JSONDecodeError) as error:
        raise DataError(f"data.path: {path} is no index of token files: {error}") from error
