"""Samples by number: token files, text that is tokenized once, and the order in which a run sees them."""

from pathlib import Path

from workers.contract.config import TextData, TokensData
from workers.data.dataset import Batch, DataError, Dataset

__all__ = ["Batch", "DataError", "Dataset", "load_dataset"]


def load_dataset(data: TextData | TokensData, cache_dir: Path) -> Dataset:
    """Open the token samples that `data` names, tokenizing text into `cache_dir` the first time. Raises DataError."""
    raise NotImplementedError
