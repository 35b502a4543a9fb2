"""Rows of text, JSON lines and Parquet files. A row that cannot be read is told as a `BadRow`, never raised."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, assert_never

from workers.contract.data_config import JsonlData, ParquetData, RowData, TextData
from workers.data.chat import LEARNT_ROLE
from workers.data.corpus import unreadable
from workers.data.dataset import DataError
from workers.data.document import BadRow, ChatRow, Message, Row, TextRow


def read_rows(data: RowData, root: Path, files: Sequence[Path]) -> Iterator[Row]:
    """Yield every row of `files` in order; places are told relative to `root`. Raises DataError for a whole file."""
    for file in files:
        name = file.relative_to(root).as_posix()
        try:
            match data:
                case TextData():
                    yield TextRow(text=file.read_bytes())
                case JsonlData():
                    yield from _json_lines(data, file, name)
                case ParquetData():
                    yield from _parquet_rows(data, file, name)
                case _:
                    assert_never(data)
        except OSError as error:
            raise unreadable(file, error) from error


def _json_lines(data: JsonlData, file: Path, name: str) -> Iterator[Row]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield parse_line(line, data, place=f"{name}:{number}")


def parse_line(line: bytes, data: JsonlData, *, place: str) -> Row:
    """Return the row that one line of JSON holds, or why it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also what is no UTF-8
        return BadRow(place=place, reason=f"no JSON: {error}")
    key = data.key or ("messages" if data.format == "chat" else "text")
    if not isinstance(value, dict) or key not in value:
        return BadRow(place=place, reason=f"no object with the key {key!r}")
    try:
        if data.format == "chat":
            return ChatRow(messages=_messages(value[key]))
        return TextRow(text=_text(value[key], key).encode("utf-8", errors="replace"))
    except ValueError as error:
        return BadRow(place=place, reason=str(error))


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {type(value).__name__}, not text")
    return value


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise ValueError('a chat is a list of {"role": ..., "content": ...}')
    turns = tuple(
        Message(role=_text(turn.get("role"), "role"), content=_text(turn.get("content"), "content"))
        for turn in value
    )
    if not any(turn.role == LEARNT_ROLE for turn in turns):
        raise ValueError(f"no turn of the role {LEARNT_ROLE!r}: nothing to learn")
    return turns


def _parquet_rows(data: ParquetData, file: Path, name: str) -> Iterator[Row]:
    # 0.2 s of imports that ranks on other kinds of data do without.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            _check_column(parquet.schema_arrow, data.column, file)
            number = 0
            for batch in parquet.iter_batches(columns=[data.column], batch_size=1024):
                for value in batch.column(0):
                    content = value.as_py()
                    yield _parquet_row(content, place=f"{name}: row {number}", column=data.column)
                    number += 1
    except pa.ArrowInvalid as error:
        raise DataError(f"data.path: {file} is no Parquet file that can be read: {error}") from error


def _check_column(schema: Any, column: str, file: Path) -> None:
    if column not in schema.names:
        raise DataError(f"data.column: {file} has no column {column!r}; it has {', '.join(schema.names)}")
    kind = str(schema.field(column).type)
    if kind.removeprefix("large_") not in ("string", "binary", "string_view", "binary_view"):
        raise DataError(f"data.column: {column!r} of {file} is {kind}, not text")


def _parquet_row(content: str | bytes | None, *, place: str, column: str) -> Row:
    if content is None:
        return BadRow(place=place, reason=f"{column} is null")
    return TextRow(text=content if isinstance(content, bytes) else content.encode("utf-8", errors="replace"))
