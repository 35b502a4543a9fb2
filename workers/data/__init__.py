"""Samples by number: token files, text that is tokenized once, and the order in which a run sees them."""

from collections.abc import Sequence
from pathlib import Path

from workers.contract.config import TextData, TokenData, TokensData
from workers.data.dataset import Batch, DataError, Dataset
from workers.data.order import SampleOrder, sample_order
from workers.data.text import prepare_text
from workers.data.token_dataset import TokenDataset
from workers.data.token_file import SUFFIX

__all__ = [
    "Batch",
    "DataError",
    "Dataset",
    "SampleOrder",
    "TokenDataset",
    "load_dataset",
    "order_of",
    "token_files",
]


def order_of(dataset: Dataset, *, seed: int, validation_ratio: float) -> SampleOrder:
    """Return which samples of `dataset` come when, and which are held out. Raises DataError where none can be."""
    return sample_order([len(dataset)], seed=seed, validation_ratio=validation_ratio)


def load_dataset(data: TokenData, cache_dir: Path) -> TokenDataset:
    """Open the token samples that `data` names, tokenizing text into `cache_dir` the first time.

    Called on every rank, not collective. Raises DataError (nothing there, too little, damaged) and StorageError.
    """
    match data:
        case TextData():
            paths: Sequence[Path] = [prepare_text(data, cache_dir)]
        case TokensData():
            paths = token_files(Path(data.path))
        case _:
            raise DataError(f"data.kind {data.kind} is not in this version")
    return TokenDataset(paths, seq_len=data.seq_len)


def token_files(path: Path) -> Sequence[Path]:
    """Return the token files that `path` names: itself, or those right inside it by name. Raises DataError."""
    path = path.expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"data.path: there is no file or directory {path.absolute()} on this node")
    found = sorted(
        file for file in path.glob(f"*{SUFFIX}") if file.is_file() and not file.name.startswith(".")
    )
    if not found:
        raise DataError(f"data.path: no *{SUFFIX} file lies in {path.absolute()}")
    return found
