"""`Engine`: the coarse interface behind which one of several engines trains. It knows no files and no data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from workers.data.dataset import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedBatch:
    """One micro-batch. With `is_counted` False it only keeps step with the other ranks: loss and gradient times 0."""

    batch: Batch  # on the CPU; the engine moves it
    num_tokens: int  # terms in its loss sum; 0 if not counted
    seed: int  # of the random streams during its forward
    is_counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What an optimizer step came to: the same on all ranks."""

    loss: float  # sum over all tokens of the global batch / their number
    grad_norm: float  # L2 over all parameters, before clipping
    tokens: int  # of the global batch
    is_finite: bool  # False: loss or norm is NaN or infinite, and no weight was touched
    is_skipped: bool = (
        False  # fp16: gradients overflowed, no weight was touched, the loss scale is lower; norm is 0
    )
    reason: str | None = None  # why there is no use in going on, where more is known than loss and norm tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a look at held-out samples came to: the same on all ranks."""

    loss: float  # sum over all their tokens / their number; NaN where there are none
    tokens: int


class Engine(Protocol):
    """Owns the module, its optimizer and their layout over the ranks."""

    def train_step(self, micro_batches: Sequence[WeightedBatch], *, learning_rate: float) -> StepOutput:
        """Run one optimizer step; collective. Every rank brings equally many micro-batches."""
        ...

    def evaluate(self, micro_batches: Sequence[WeightedBatch]) -> Evaluation:
        """Return the loss over the micro-batches of all ranks, in evaluation mode, without gradients; collective.

        Every rank brings equally many. No weight, no optimizer state and no buffer is touched.
        """
        ...

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return everything that a checkpoint holds, by canonical name, as live tensors: plain, or DTensor where sharded.

        `model.<fqn>` is the fp32 master, `optimizer.<fqn>.<moment>` and `optimizer.<fqn>.step` the optimizer's state of a
        trainable parameter, `buffer.<fqn>` a persistent buffer; with fp16 `scaler.scale` (0-dim fp32) and
        `scaler.good_steps` (0-dim int64). The base of an `AdapterTask` is not in it. Complete from construction on; not
        collective.
        """
        ...

    def aliases(self) -> Mapping[str, str]:
        """Return tied names: the name that is not in `state()` -> the name under which the tensor is."""
        ...

    def after_load(self) -> None:
        """Take over what was written in place into the tensors of `state()`. Every rank, once after a load."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Return exact bytes of what this rank holds all the time, by category; gradients as of the newest step.

        `parameters`, `gradients`, `optimizer_state` and `buffers` lie on the device, `offloaded` in host memory instead.
        """
        ...
