"""What forward and backward hold on top of the weights, from a run of both with tensors that have no storage.

The task's own module and loss run under `FakeTensorMode`: shapes and dtypes are right, no byte is allocated, no arithmetic
done. Every storage that an operation makes is counted until it dies, so what autograd keeps, what recomputation makes
again, and the operations' own results are all in it; gradients of weights are not: engines take each as it is made.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workers.contract.config import Engine
from workers.engines.blocks import prepare_blocks
from workers.engines.units import cast_inputs
from workers.models.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes beyond weights, gradients and batch."""

    kept: int  # at the end of forward: what backward needs
    peak: int  # of forward and backward


def trace(
    task: Task, batch: Mapping[str, torch.Tensor], engine: Engine, *, compute: torch.dtype
) -> Activations:
    """Return what one micro-batch holds; `batch` has its shapes and dtypes, its values are not read.

    Takes a second or two for each hundred blocks, whatever their width.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module = _fake_module(task, compute)
        blocks = task.blocks(module)
        prepare_blocks(blocks, engine.model_copy(update={"compile": False}))
        if compute != torch.float32:
            for unit in (module, *blocks):
                cast_inputs(unit, compute)
        fake = {key: mode.from_tensor(value) for key, value in batch.items()}
        with LiveBytes([*module.parameters(), *module.buffers(), *fake.values()]) as live:
            loss = task.loss_sum(module, fake)
            kept = live.current
            loss.backward()  # type: ignore[no-untyped-call]
    return Activations(kept=kept, peak=live.peak)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts bytes of the storages that operations make, while they live; those of `known` tensors are not counted."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count what it has made."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in self._alive:
            return
        self._alive.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._let_go, key, size)

    def _let_go(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.current -= size


def _fake_module(task: Task, compute: torch.dtype) -> nn.Module:
    """Build the module with weights that have no memory, in the dtype that forward reads; let go of each gradient."""
    module = task.build()
    module.train()
    for parameter in list(module.parameters()):
        dtype = compute if parameter.is_floating_point() and parameter.ndim else parameter.dtype
        fake = nn.Parameter(
            torch.empty(parameter.shape, dtype=dtype, device="cpu"), requires_grad=parameter.requires_grad
        )
        if fake.requires_grad:
            fake.register_post_accumulate_grad_hook(_let_go_of_gradient)  # type: ignore[no-untyped-call]
        for part in module.modules():
            for leaf in [leaf for leaf, known in part._parameters.items() if known is parameter]:
                part._parameters[leaf] = fake
    return module


def _let_go_of_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None
