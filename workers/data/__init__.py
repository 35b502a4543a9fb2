"""Samples by number: token files, text that is tokenized once, and the order in which a run sees them."""

from pathlib import Path
from typing import assert_never

from workers.contract.config import (
    JsonlData,
    MixtureData,
    ParquetData,
    TextData,
    TokenData,
    TokensData,
)
from workers.data.corpus import find_corpus
from workers.data.dataset import Batch, DataError, Dataset
from workers.data.inventory import Inventory, take_inventory
from workers.data.mixture import Mixture
from workers.data.order import SampleOrder, sample_order
from workers.data.prepare import open_tokenizer, prepare, tokenizer_json, vocab_size_of
from workers.data.token_dataset import TokenDataset
from workers.data.token_index import token_files
from workers.data.tokenizer import Tokenizer

__all__ = [
    "Batch",
    "DataError",
    "Dataset",
    "Inventory",
    "Mixture",
    "SampleOrder",
    "TokenDataset",
    "Tokenizer",
    "load_dataset",
    "open_tokenizer",
    "order_of",
    "take_inventory",
    "token_files",
    "tokenizer_json",
    "vocab_size_of",
]


def order_of(dataset: Dataset, *, seed: int, validation_ratio: float) -> SampleOrder:
    """Return which samples of `dataset` come when, and which are held out. Raises DataError where none can be."""
    if isinstance(dataset, Mixture):
        return sample_order(
            dataset.sizes, weights=dataset.weights, seed=seed, validation_ratio=validation_ratio
        )
    return sample_order([len(dataset)], seed=seed, validation_ratio=validation_ratio)


def load_dataset(data: TokenData, cache_dir: Path) -> TokenDataset | Mixture:
    """Open the token samples that `data` names, tokenizing rows into `cache_dir` the first time.

    Called on every rank, not collective. Raises DataError (nothing there, too little, damaged) and StorageError.
    """
    tokenizer = open_tokenizer(data, cache_dir)
    if isinstance(data, MixtureData):
        named = sorted(data.sources.items())  # so that no copy of a job file can deal them in another order
        sources = {name: _open(source.data, tokenizer, cache_dir) for name, source in named}
        return Mixture(sources, weights=[source.weight for _, source in named])
    return _open(data, tokenizer, cache_dir)


def _open(
    data: TextData | JsonlData | ParquetData | TokensData, tokenizer: Tokenizer | None, cache_dir: Path
) -> TokenDataset:
    match data:
        case TokensData():
            paths = token_files(Path(data.path))
        case TextData() | JsonlData() | ParquetData():
            assert tokenizer is not None, "only token files come without a tokenizer"
            paths = [prepare(find_corpus(data), tokenizer, cache_dir)]
        case _:
            assert_never(data)
    return TokenDataset(paths, seq_len=data.seq_len, attention=data.attention, tokenizer=tokenizer)
