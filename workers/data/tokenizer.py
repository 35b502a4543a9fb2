"""The bytes tokenizer: a token is a byte, and one more id begins each document. Needs no training and no file."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

NAME: Final = "bytes"
BOS: Final = 256
# 256 bytes and `BOS` make 257, a prime: rounded up, so that the table's rows split evenly over 2 and 4 ranks.
# The ids 257..259 stand for nothing and never occur in data.
VOCAB_SIZE: Final = 260


def encode_document(content: bytes) -> npt.NDArray[np.uint16]:
    """Return `BOS` and then one id per byte, shape [1 + len(content)]."""
    ids = np.empty(1 + len(content), dtype=np.uint16)
    ids[0] = BOS
    ids[1:] = np.frombuffer(content, dtype=np.uint8)
    return ids


def decode(ids: Iterable[int]) -> str:
    """Return the text of `ids`; what is no byte is left out, and bytes that are no UTF-8 become U+FFFD."""
    return bytes(token for token in ids if token < BOS).decode("utf-8", errors="replace")
