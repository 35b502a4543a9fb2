"""`Task`: all that the loop and the engines know of a model family, and all that your own training code has to bring.

Write one for `model: {kind: task, target: "my_package.my_module:make_task", args: {...}}`: any object with these five
methods, returned by the callable that `target` names. It needs no import of ours and no base class:

    class Regression:
        def build(self) -> nn.Module: return nn.Linear(8, 1)
        def blocks(self, module) -> Sequence[nn.Module]: return ()
        def loss_sum(self, module, batch) -> Tensor: return (module(batch["x"]) - batch["y"]).square().sum()
        def num_tokens(self, batch) -> int: return len(batch["x"])
        def dataset(self, cache_dir) -> Dataset: return MyRows()

The loss of a step is the sum of `loss_sum` over all ranks and micro-batches, divided by the sum of `num_tokens`. So it
does not depend on how the global batch was cut. Sharding, precision, checkpoints and restarts are the engines' affair.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from workers.data.dataset import Batch, Dataset
from workers.errors import ConfigError

__all__ = ["AdapterTask", "Batch", "Dataset", "DeferredTask", "Task", "TaskError", "is_base"]


class TaskError(ConfigError):
    """`model.target` names nothing that fulfils `Task`: says what was looked for and what was found."""


@runtime_checkable
class Task(Protocol):
    """One kind of model with its loss and its data. Every rank makes its own from the same job file."""

    def build(self) -> nn.Module:
        """Build the module and fill every parameter and buffer, in fp32. (A `DeferredTask` fills parameters later.)

        Every rank calls it, on the CPU, with torch's default generator seeded alike: draw from that one only, and all
        ranks start from equal weights at any world size. Not collective.
        """
        ...

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the submodules that are sharded and recomputed as a unit, in forward order; () for the root alone.

        `module` is what `build` returned, not wrapped yet.
        """
        ...

    def loss_sum(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss *summed* over the batch's counted tokens: 0-dim, fp32, differentiable.

        Call `module(...)` itself, once: engines hang their work on its forward, so a call of one of its submodules or
        methods would see shards. `module` may be wrapped; `batch` lies on the module's device.
        """
        ...

    def num_tokens(self, batch: Batch) -> int:
        """Return how many terms `loss_sum` adds up for this batch (0 is allowed). `batch` still lies on the CPU."""
        ...

    def dataset(self, cache_dir: Path) -> Dataset:
        """Open the samples. `cache_dir` is a directory that the ranks of a node share: what is prepared once goes there.

        Every rank calls it, several at once, and again after each restart; all must get the same `digest`.
        """
        ...


@runtime_checkable
class DeferredTask(Task, Protocol):
    """A task whose `build` leaves every parameter on the meta device, so that no rank ever holds the whole model.

    Buffers are real all the same: what a constructor computes is lost on the meta device.
    """

    def initial_weight(self, name: str) -> torch.Tensor:
        """Return the parameter that `build`'s module calls `name`, whole, in fp32, on the CPU.

        A function of the job's seed and the name alone, the same on every rank; asked once for each parameter, and let
        go of before the next. A tied one is asked for under its first name.
        """
        ...


@runtime_checkable
class AdapterTask(DeferredTask, Protocol):
    """A task that trains small parts within a large model that stays as it is, and lies where every start can read it."""

    def is_base(self, name: str) -> bool:
        """True for a frozen parameter that no checkpoint holds: `initial_weight` gives it again, also when a job goes on."""
        ...


def is_base(task: Task, name: str) -> bool:
    """Return whether `name` is a parameter that checkpoints of `task` leave out."""
    return isinstance(task, AdapterTask) and task.is_base(name)
