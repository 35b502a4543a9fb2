"""Which parameters a step used: one that no rank used is not updated, nor decayed, as in one process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from workers.world import World


def agree_on_use(used: Sequence[bool], *, device: torch.device, group: dist.ProcessGroup) -> list[bool]:
    """Return for each parameter whether any rank used it; collective unless there are none. Waits for the device."""
    if not used:
        return []
    flags = torch.tensor(used, dtype=torch.uint8, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in flags.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a unit's module tree keeps one parameter: the sharded one, and while it is gathered the whole one."""

    owner: nn.Module
    leaf: str
    index: int


class GatheredUse:
    """Notes which parameters get a gradient, where FSDP swaps them in units for gathered ones.

    FSDP gives a gradient of zeros to what a rank did not use, so that all ranks reduce alike; it cannot be told from a
    true one afterwards. So each gathered parameter, of which FSDP makes one and keeps it, gets a hook when it appears.
    """

    def __init__(self, units: Sequence[nn.Module], parameters: Mapping[int, int], num: int) -> None:
        """Hook on `units` (inner ones first, the root last); `parameters` is id of a sharded parameter -> its index."""
        self._used = [False] * num
        self._hooked: list[torch.Tensor | None] = [None] * num
        seen: set[int] = set()
        for unit in units:
            places = list(_places(unit, parameters, seen))
            unit.register_forward_pre_hook(partial(self._watch, places))

    def begin_step(self) -> None:
        """Forget the step before."""
        self._used = [False] * len(self._used)

    def used_by_any(self, world: World) -> list[bool]:
        """Return for each parameter whether any rank used it since `begin_step`; collective."""
        return agree_on_use(self._used, device=world.device, group=world.group)

    def _watch(self, places: Sequence[_Place], _module: nn.Module, _args: object) -> None:
        """Hook: the unit is about to run, its parameters are gathered."""
        for place in places:
            gathered = place.owner._parameters[place.leaf]
            if gathered is not self._hooked[place.index] and gathered is not None:
                self._hooked[place.index] = gathered
                gathered.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._note, place.index)
                )

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        self._used[index] = True


def _places(unit: nn.Module, parameters: Mapping[int, int], seen: set[int]) -> Iterator[_Place]:
    """Yield each parameter below `unit` that no unit before had, once, however many names it has."""
    for owner in unit.modules():
        for leaf, parameter in owner._parameters.items():
            if parameter is not None and id(parameter) in parameters and id(parameter) not in seen:
                seen.add(id(parameter))
                yield _Place(owner=owner, leaf=leaf, index=parameters[id(parameter)])
