"""What passes through the making of token files: a row as it was read, a document as tokens, a row that is neither."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

LINE_LIMIT: Final = 100  # characters of a place, and of a reason, that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """A document as bytes: UTF-8 where it came from a format that knows text."""

    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """A document of turns, of which the assistant's are learnt."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that makes no document. It is left out before samples are numbered, so every rank keeps step."""

    place: str  # file and line, or file and row
    reason: str

    def __str__(self) -> str:
        """Return both on one line, cut to what a header has room for."""
        line = f"{self.place[-LINE_LIMIT:]}: {self.reason[:LINE_LIMIT]}"
        return "".join(char if char.isprintable() else "?" for char in line)


Row = TextRow | ChatRow | BadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Token ids of one document, shape [n], and which of them are learnt, bool [n] (None: every one)."""

    ids: npt.NDArray[np.integer]
    is_learnt: npt.NDArray[np.bool_] | None = None
