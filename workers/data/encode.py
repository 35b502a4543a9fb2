"""Rows into documents of tokens."""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from workers.data.chat import encode_chat
from workers.data.document import BadRow, ChatRow, Document, Row, TextRow
from workers.data.tokenizer import Ids, Tokenizer

_BATCH_BYTES: Final = 4 << 20  # of text that is encoded at once, so that a tokenizer can use its cores


def encode_rows(rows: Iterable[Row], tokenizer: Tokenizer) -> Iterator[Document | BadRow]:
    """Yield the document of each row, in order, begun by the tokenizer's mark; bad rows pass through."""
    waiting: list[bytes] = []
    num_bytes = 0
    for row in rows:
        if isinstance(row, TextRow):
            waiting.append(row.text)
            num_bytes += len(row.text)
            if num_bytes < _BATCH_BYTES:
                continue
        yield from _encode_texts(waiting, tokenizer)
        waiting, num_bytes = [], 0
        match row:
            case ChatRow():
                yield encode_chat(row.messages, tokenizer)
            case BadRow():
                yield row
    yield from _encode_texts(waiting, tokenizer)


def texts_of(rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the text that a tokenizer is trained on: whole documents, and each turn of a chat."""
    for row in rows:
        match row:
            case TextRow():
                yield row.text
            case ChatRow():
                for message in row.messages:
                    yield message.content.encode("utf-8", errors="replace")


def _encode_texts(texts: list[bytes], tokenizer: Tokenizer) -> Iterator[Document]:
    mark: Ids = np.array([] if tokenizer.document_mark is None else [tokenizer.document_mark], dtype=np.int64)
    for ids in tokenizer.encode(texts):
        yield Document(ids=np.concatenate([mark, ids]))
