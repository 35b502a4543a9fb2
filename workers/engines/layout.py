"""`Layout`: how parameters and their gradients lie on this rank. What differs between replicating and sharding is here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameter:
    """One parameter as this rank holds it.

    `master` is what the optimizer updates: a plain fp32 tensor, the whole parameter or this rank's shard of it.
    `working` is what forward reads: the same memory, or a copy in lower precision.
    """

    name: str  # fully qualified, as in the module that the task built
    master: nn.Parameter
    working: nn.Parameter

    @property
    def is_sharded(self) -> bool:
        """True if `master` is a part only: norms have to be summed over ranks."""
        return isinstance(self.working.data, DTensor)

    def as_global(self, local: torch.Tensor) -> torch.Tensor:
        """Return `local`, which lies as `master` does, as a tensor that knows its place in the whole; same memory."""
        working = self.working.data
        return at_place_of(working, local) if isinstance(working, DTensor) else local


def at_place_of(placed: DTensor, local: torch.Tensor) -> DTensor:
    """Return this rank's `local` as the tensor that is cut as `placed` is; same memory, on whatever device it lies.

    `DTensor.from_local` would move a shard in host memory to the mesh's device (torch 2.13); FSDP builds its own so.
    """
    spec = placed._spec
    assert spec.tensor_meta is not None
    assert spec.tensor_meta.dtype == local.dtype
    return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def replicated(name: str, working: nn.Parameter, compute: torch.dtype) -> LocalParameter:
    """Hold a parameter whole on every rank, with a master of its own where compute has another dtype.

    `working` is cast in place. One of 0 dims stays fp32: torch lets it take part in arithmetic of any dtype.
    """
    if working.dtype == compute or not working.is_floating_point() or working.ndim == 0:
        return LocalParameter(name=name, master=working, working=working)
    master = nn.Parameter(working.detach().clone(), requires_grad=working.requires_grad)
    working.data = working.data.to(compute)
    return LocalParameter(name=name, master=master, working=working)


@torch.no_grad()
def publish(parameters: Iterable[LocalParameter]) -> None:
    """Copy masters into working copies where these are memory of their own."""
    for parameter in parameters:
        if parameter.working is not parameter.master and not parameter.is_sharded:
            parameter.working.copy_(parameter.master)


class Layout(Protocol):
    """Gradients in, masters out. All ranks make the same calls in the same order."""

    @property
    def parameters(self) -> Sequence[LocalParameter]:
        """Every parameter once, in the module's order."""
        ...

    @property
    def num_copies(self) -> int:
        """On how many ranks each shard lies: 1, or the number of groups of a hybrid layout."""
        ...

    def before_backward(self, *, is_first: bool, is_last: bool) -> None:
        """Prepare the forward and backward of one micro-batch of a step."""
        ...

    def reduce_gradients(self) -> None:
        """After the last backward: put the gradient, summed over ranks and micro-batches, into each `master.grad`.

        None where no rank used the parameter: such a one is not updated, nor decayed.
        """
        ...

    def clear_gradients(self) -> None:
        """Let go of the gradients of this step."""
        ...

    def publish_masters(self) -> None:
        """Bring what forward reads up to the masters, after an update or a load."""
        ...

    def drop_gathered(self) -> None:
        """Let go of what was gathered for forwards that no backward followed. Local."""
        ...
