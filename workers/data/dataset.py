"""What the loop knows of data: a `Dataset` gives any sample by its number. Order and position are not its business."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch

from workers.errors import ConfigError

Batch = Mapping[str, torch.Tensor]
"""Named CPU tensors; the first dimension of each counts the batch's sequences."""


class DataError(ConfigError):
    """The data of a job cannot be trained on as it is: nothing there, too little, damaged. Never retried."""


@runtime_checkable
class Dataset(Protocol):
    """Samples numbered 0 .. len-1, the same on every rank and in every restart.

    Which sample comes when is `workers.data.order`'s decision, so a data set keeps no position and shuffles nothing.
    """

    @property
    def digest(self) -> str:
        """Names the content and how samples are cut from it: two data sets with one digest give the same samples."""
        ...

    def __len__(self) -> int:
        """Number of samples, at least 1."""
        ...

    def batch(self, ids: Sequence[int]) -> Batch:
        """Stack the samples `ids` (at least one, any order, repeats allowed). Called on every rank, not collective."""
        ...
