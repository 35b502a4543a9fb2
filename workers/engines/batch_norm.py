"""Running statistics of batch normalisation: fp32 whatever the precision, equal on all ranks, counted once.

Each rank normalises by the statistics of its own micro-batch, as `DistributedDataParallel` does; so a model with them
depends on how the global batch is cut. What is kept for evaluation is the mean over ranks.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from workers.world import World


def statistics_of(module: nn.Module) -> list[_NormBase]:
    """Return the parts of `module` that keep running statistics."""
    return [
        part for part in module.modules() if isinstance(part, _NormBase) and part.running_mean is not None
    ]


def statistics_parameters(module: nn.Module) -> set[nn.Parameter]:
    """Return the scales and shifts of these parts. They stay whole and fp32: torch's kernels want them as the statistics."""
    return {parameter for part in statistics_of(module) for parameter in part.parameters(recurse=False)}


@contextmanager
def frozen(parts: Sequence[_NormBase]) -> Iterator[None]:
    """Let `parts` compute as ever, but on copies of their statistics, which are dropped at the end."""
    were = [dict(part._buffers) for part in parts]
    for part in parts:
        part._buffers.update({name: _copy(buffer) for name, buffer in part._buffers.items()})
    try:
        yield
    finally:
        for part, buffers in zip(parts, were, strict=True):
            part._buffers.update(buffers)


class RunningStatistics:
    """The statistics of a module over one step after another."""

    def __init__(self, module: nn.Module, world: World) -> None:
        self._world = world
        self._parts = statistics_of(module)
        self._before: list[torch.Tensor] = []

    def begin_step(self) -> None:
        """Remember them, for a step that is not taken."""
        self._before = [buffer.clone() for buffer in self._buffers()]

    def only_if(self, *, is_counted: bool) -> AbstractContextManager[None]:
        """Let a forward move them only if its samples count."""
        return nullcontext() if is_counted else frozen(self._parts)

    @torch.no_grad()
    def end_step(self, *, is_taken: bool, has_counted: bool) -> None:
        """Average over the ranks that had samples, or go back; collective if the module has any and the step is taken.

        One all-reduce of all of them together. `is_taken` is the same on all ranks.
        """
        if not is_taken:
            for buffer, before in zip(self._buffers(), self._before, strict=True):
                buffer.copy_(before)
        elif self._parts and self._world.world_size > 1:
            self._average(has_counted=has_counted)

    def _average(self, *, has_counted: bool) -> None:
        averaged = [buffer for buffer in self._buffers() if buffer.is_floating_point()]
        flat = torch.cat([torch.ones(1, device=self._world.device), *(b.float().flatten() for b in averaged)])
        flat = flat if has_counted else torch.zeros_like(flat)
        dist.all_reduce(flat, group=self._world.group)
        start = 1
        for buffer in averaged:
            buffer.copy_((flat[start : start + buffer.numel()] / flat[0]).view_as(buffer))
            start += buffer.numel()

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for part in self._parts for buffer in part.buffers(recurse=False)]


def _copy(buffer: torch.Tensor | None) -> torch.Tensor | None:
    return None if buffer is None else buffer.clone()
