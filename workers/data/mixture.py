"""Several data sets as one: samples numbered end to end. In which shares they come is `workers.data.order`'s decision."""

import itertools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xxhash

from workers.data.dataset import Batch, DataError
from workers.data.token_dataset import TokenDataset


class Mixture:
    """Token data sets by name, with the weight of each. Fulfils `Dataset`."""

    def __init__(self, sources: Mapping[str, TokenDataset], *, weights: Sequence[float]) -> None:
        """Lay `sources` end to end, in the order given. Raises DataError where their ids mean different things."""
        _check_tokenizers(sources)
        self.sources = tuple(sources.values())
        self._first_ids = np.array([0, *itertools.accumulate(map(len, self.sources))])
        self.sizes = tuple(map(len, self.sources))
        self.weights = tuple(weights)
        self.tokenizer = self.sources[0].tokenizer
        self.vocab_size = max(source.vocab_size for source in self.sources)
        parts = {name: source.digest for name, source in sources.items()}
        self.digest = f"xxh3_128:{xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())}"

    def __len__(self) -> int:
        """Number of samples in all sources."""
        return sum(self.sizes)

    def batch(self, ids: Sequence[int]) -> Batch:
        """Stack the samples `ids`, whichever sources they are of: what `TokenDataset.batch` gives."""
        single = [self._sample(int(sample)) for sample in ids]
        return {name: torch.cat([row[name] for row in single]) for name in single[0]}

    def _sample(self, sample: int) -> Batch:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        number = int(np.searchsorted(self._first_ids, sample, side="right")) - 1
        return self.sources[number].batch([sample - int(self._first_ids[number])])


def _check_tokenizers(sources: Mapping[str, TokenDataset]) -> None:
    (first_name, first), *others = sources.items()
    for name, source in others:
        if source.tokenizer_name != first.tokenizer_name:
            raise DataError(
                f"data.sources: {name} holds tokens of {source.tokenizer_name}, "
                f"{first_name} of {first.tokenizer_name}: "
                "ids of one job must mean one thing"
            )
