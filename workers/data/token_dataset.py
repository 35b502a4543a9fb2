"""Samples cut from token files: windows of seq_len + 1 ids, stride seq_len, so every token is predicted once.

Shape suffixes: B sequences, T positions of a sequence.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from workers.data.dataset import Batch, DataError
from workers.data.token_file import TokenFile, TokenHeader, open_token_file
from workers.data.tokenizer import Tokenizer

NOT_COUNTED: Final = -100  # the label of a token that no model is to predict
_CUT_RULE: Final = "windows of seq_len + 1, stride seq_len, files apart"

Row = npt.NDArray[np.int64]


class TokenDataset:
    """Non-overlapping windows over one or more token files. Fulfils `Dataset`.

    A window never crosses two files. What is left at the end of a file, below one window, is in no sample: it is
    counted in `num_dropped_tokens`. Rows that were left out when the files were written are counted in `num_bad_rows`.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        seq_len: int,
        attention: Literal["across", "within"] = "across",
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Map `paths` in the given order; `tokenizer` made them, where it is known.

        Raises DataError if a file is damaged or all together give no sample.
        """
        self._files = [open_token_file(path) for path in paths]
        headers = [file.header for file in self._files]
        per_file = [max(0, header.count - 1) // seq_len for header in headers]
        _check(headers, paths, seq_len=seq_len, num_samples=sum(per_file))
        self.seq_len = seq_len
        self.vocab_size = max(header.vocab_size for header in headers)
        self.tokenizer = tokenizer
        self.tokenizer_name = headers[0].tokenizer
        self.num_dropped_tokens = sum(
            header.count - (windows * seq_len + 1 if windows else 0)
            for header, windows in zip(headers, per_file, strict=True)
        )
        self.num_bad_rows = sum(header.num_bad_rows for header in headers)
        self.bad_rows = tuple(row for header in headers for row in header.bad_rows)
        self.digest = _digest([header.digest for header in headers], seq_len, attention)
        self._is_within = attention == "within"
        self._first_ids = np.array([0, *itertools.accumulate(per_file)])

    def __len__(self) -> int:
        """Number of windows in all files."""
        return int(self._first_ids[-1])

    def batch(self, ids: Sequence[int]) -> Batch:
        """Return `tokens` and `labels`, int64 [B, T]: each label is the token after it, also across a document's end.

        A label that is not learnt is -100. With attention within documents there is also `documents`, int64 [B, T]:
        equal numbers in a row are one document. A document's last token then predicts no more than the mark that
        begins the next one, as that is how a text ends; without such a mark it predicts nothing.
        """
        rows = [self._sample(int(sample)) for sample in ids]
        names = ("tokens", "labels", "documents") if self._is_within else ("tokens", "labels")
        return {
            name: torch.from_numpy(np.stack(column))
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }

    def _sample(self, sample: int) -> tuple[Row, ...]:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        number = int(np.searchsorted(self._first_ids, sample, side="right")) - 1
        start = (sample - int(self._first_ids[number])) * self.seq_len
        file, stop = self._files[number], start + self.seq_len + 1
        window = file.ids[start:stop].astype(np.int64)
        is_learnt = file.is_learnt(start, stop)[1:]
        if not self._is_within:
            return window[:-1], np.where(is_learnt, window[1:], NOT_COUNTED)
        documents = file.documents(start, stop)
        is_own = (documents[1:] == documents[:-1]) | _is_mark(file, window[1:])
        return (
            window[:-1],
            np.where(is_learnt & is_own, window[1:], NOT_COUNTED),
            documents[:-1] - documents[0],
        )


def _is_mark(file: TokenFile, ids: Row) -> npt.NDArray[np.bool_]:
    mark = file.header.document_mark
    return np.zeros(ids.shape, dtype=np.bool_) if mark is None else np.equal(ids, mark)


def _check(headers: Sequence[TokenHeader], paths: Sequence[Path], *, seq_len: int, num_samples: int) -> None:
    first = headers[0]
    for header, path in zip(headers, paths, strict=True):
        if header.tokenizer != first.tokenizer:
            raise DataError(
                f"data.path: {path} holds tokens of {header.tokenizer}, {paths[0]} of {first.tokenizer}: "
                "ids of one job must mean one thing"
            )
    if num_samples:
        return
    num_tokens = sum(header.count for header in headers)
    num_bad = sum(header.num_bad_rows for header in headers)
    named = next((row for header in headers for row in header.bad_rows), "")
    left_out = f"; {num_bad} bad rows were left out, the first: {named}" if num_bad else ""
    raise DataError(
        f"data: {num_tokens} tokens in {len(paths)} file(s) are fewer than one sample needs, "
        f"{seq_len + 1} (data.seq_len {seq_len} and the next token): lower data.seq_len or give more data{left_out}"
    )


def _digest(file_digests: Sequence[str], seq_len: int, attention: str) -> str:
    rule = json.dumps(
        {"files": list(file_digests), "seq_len": seq_len, "attention": attention, "cut": _CUT_RULE}
    )
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(rule.encode())}"
