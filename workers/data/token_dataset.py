"""Samples cut from token files: windows of seq_len + 1 ids, stride seq_len, so every token is predicted once.

Shape suffixes: B sequences, T positions of a sequence.
"""

# ruff: noqa: N806 -- shape suffixes are upper case

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
import xxhash

from workers.data.dataset import Batch, DataError
from workers.data.token_file import map_tokens, read_header

_CUT_RULE: Final = "windows of seq_len + 1, stride seq_len, files apart"


class TokenDataset:
    """Non-overlapping windows over one or more token files. Fulfils `Dataset`.

    A window never crosses two files. What is left at the end of a file, below one window, is in no sample: it is
    counted in `num_dropped_tokens`.
    """

    def __init__(self, paths: Sequence[Path], *, seq_len: int) -> None:
        """Map `paths` in the given order. Raises DataError if a file is damaged or all together give no sample."""
        headers = [read_header(path) for path in paths]
        per_file = [max(0, header.count - 1) // seq_len for header in headers]
        num_tokens = sum(header.count for header in headers)
        if sum(per_file) == 0:
            raise DataError(
                f"data: {num_tokens} tokens in {len(paths)} file(s) are fewer than one sample needs, "
                f"{seq_len + 1} (data.seq_len {seq_len} and the next token): lower data.seq_len or give more data"
            )
        self.seq_len = seq_len
        self.vocab_size = max(header.vocab_size for header in headers)
        self.num_dropped_tokens = sum(
            header.count - (windows * seq_len + 1 if windows else 0)
            for header, windows in zip(headers, per_file, strict=True)
        )
        self.digest = _digest([header.digest for header in headers], seq_len)
        self._tokens = [map_tokens(path, header) for path, header in zip(paths, headers, strict=True)]
        self._first_ids = np.array([0, *itertools.accumulate(per_file)])

    def __len__(self) -> int:
        """Number of windows in all files."""
        return int(self._first_ids[-1])

    def batch(self, ids: Sequence[int]) -> Batch:
        """Return `tokens` and `labels`, int64 [B, T]: each label is the token after it, also across a document's end."""
        windows = np.stack([self._window(int(sample)) for sample in ids]).astype(np.int64)
        ids_BT1 = torch.from_numpy(windows)
        return {"tokens": ids_BT1[:, :-1].contiguous(), "labels": ids_BT1[:, 1:].contiguous()}

    def _window(self, sample: int) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        file = int(np.searchsorted(self._first_ids, sample, side="right")) - 1
        start = (sample - int(self._first_ids[file])) * self.seq_len
        return self._tokens[file][start : start + self.seq_len + 1]


def _digest(file_digests: Sequence[str], seq_len: int) -> str:
    rule = json.dumps({"files": list(file_digests), "seq_len": seq_len, "cut": _CUT_RULE})
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(rule.encode())}"
