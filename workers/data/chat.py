"""A chat as tokens, in ChatML: each turn between two marks, and only what the assistant says is learnt.

    <|im_start|>user            not learnt
    How are you?<|im_end|>      not learnt
    <|im_start|>assistant       not learnt: whoever asks the model writes it
    Well.<|im_end|>             learnt, the end as well: it is how the model stops

A vocabulary without these marks spells them out as text.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from workers.data.document import Document, Message
from workers.data.tokenizer import TURN_BEGINS, TURN_ENDS, Ids, Tokenizer

LEARNT_ROLE: Final = "assistant"


class _Piece(NamedTuple):
    text: str
    is_learnt: bool = False
    is_mark: bool = False  # what a user writes never is, even if it spells one


def encode_chat(messages: Sequence[Message], tokenizer: Tokenizer) -> Document:
    """Return the chat as one document. Pieces are encoded apart, as they will be when an answer is generated."""
    pieces = list(_pieces(messages))
    spelled = tokenizer.encode([piece.text.encode("utf-8", errors="replace") for piece in pieces])
    ids = [_ids(piece, text, tokenizer) for piece, text in zip(pieces, spelled, strict=True)]
    learnt = [piece.is_learnt for piece in pieces]
    if tokenizer.document_mark is not None:
        ids.insert(0, np.array([tokenizer.document_mark]))
        learnt.insert(0, False)
    return Document(ids=np.concatenate(ids), is_learnt=np.repeat(learnt, [part.size for part in ids]))


def _ids(piece: _Piece, spelled: Ids, tokenizer: Tokenizer) -> Ids:
    mark = tokenizer.mark(piece.text) if piece.is_mark else None
    return spelled.astype(np.int64) if mark is None else np.array([mark])


def _pieces(messages: Sequence[Message]) -> Iterator[_Piece]:
    for message in messages:
        is_answer = message.role == LEARNT_ROLE
        yield _Piece(TURN_BEGINS, is_mark=True)
        yield _Piece(f"{message.role}\n")
        yield _Piece(message.content, is_learnt=is_answer)
        yield _Piece(TURN_ENDS, is_learnt=is_answer, is_mark=True)
        yield _Piece("\n")
