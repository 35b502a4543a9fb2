"""What makes tokens of text: `Tokenizer`, and the one that needs neither training nor a file, a token a byte.

Every tokenizer gives its `tokenizer.json` of the tokenizers library, which an export carries along.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]

DOCUMENT_MARK: Final = "<|bos|>"
TURN_BEGINS: Final = "<|im_start|>"  # of ChatML, as `data.chat` writes it
TURN_ENDS: Final = "<|im_end|>"

NAME: Final = "bytes"
BOS: Final = 256
# 256 bytes and three marks make 259, a prime: rounded up, so that the table's rows split evenly over 2 and 4 ranks.
# The id 259 stands for nothing and never occurs in data.
VOCAB_SIZE: Final = 260
_MARKS: Final = {DOCUMENT_MARK: BOS, TURN_BEGINS: 257, TURN_ENDS: 258, "<|unused|>": 259}


class Tokenizer(Protocol):
    """Text to ids and back. Marks are ids that no text can spell: `encode` never gives one."""

    @property
    def name(self) -> str:
        """Names the meaning of the ids: tokenizers of one name agree on every text."""
        ...

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""
        ...

    @property
    def document_mark(self) -> int | None:
        """The id that begins each document, where there is one."""
        ...

    def mark(self, text: str) -> int | None:
        """Return the id of a mark by its text, where the vocabulary has it."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        """Return the ids of each text, shape [n], without marks. Bytes that are no UTF-8 may become U+FFFD."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, without marks."""
        ...

    def to_json(self) -> str:
        """Return it as the content of a `tokenizer.json`."""
        ...


class ByteTokenizer:
    """One id a byte. Fulfils `Tokenizer`."""

    name: Final = NAME
    vocab_size: Final = VOCAB_SIZE
    document_mark: Final = BOS

    def mark(self, text: str) -> int | None:
        """Return the id of a mark by its text."""
        return _MARKS.get(text)

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        """Return each byte of each text; any bytes are welcome."""
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; bytes that are no UTF-8 become U+FFFD."""
        return decode(ids)

    def to_json(self) -> str:
        """Return a byte-level BPE of no merges, which numbers bytes and marks as here and begins with the mark."""
        return json.dumps(_byte_level_json(), ensure_ascii=False, indent=2)


def decode(ids: Iterable[int]) -> str:
    """Return the text of byte ids; what is no byte is left out, and bytes that are no UTF-8 become U+FFFD."""
    return bytes(token for token in ids if token < BOS).decode("utf-8", errors="replace")


def encode_document(content: bytes) -> npt.NDArray[np.uint16]:
    """Return `BOS` and then one id per byte, shape [1 + len(content)]."""
    return np.concatenate([[BOS], np.frombuffer(content, dtype=np.uint8)]).astype(np.uint16)


def _byte_level_json() -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text, number in _MARKS.items()
        ],
        "pre_tokenizer": level,
        "decoder": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": DOCUMENT_MARK, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {DOCUMENT_MARK: {"id": DOCUMENT_MARK, "ids": [BOS], "tokens": [DOCUMENT_MARK]}},
        },
        "model": {"type": "BPE", "vocab": {**_byte_alphabet(), **_MARKS}, "merges": []},
    }


def _byte_alphabet() -> dict[str, int]:
    """The letter that byte-level BPE writes for each byte (Radford et al. 2019): printable ones are themselves.

    The others take the letters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}
