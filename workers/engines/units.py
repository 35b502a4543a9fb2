"""How a module is cut into units: what is gathered together, cast together."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from workers.errors import ConfigError

_log = logging.getLogger(__name__)


def sharding_units(module: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the blocks that can be units of their own, in order; all the rest belongs to the root's unit.

    A block that shares a parameter with something outside itself (tied weights, a layer used twice, a block inside a
    block) cannot: a parameter lives in one unit. Raises ConfigError for a block that is no part of `module`.
    """
    parts = set(module.modules())
    if strangers := [type(block).__name__ for block in blocks if block not in parts]:
        raise ConfigError(f"task.blocks() returned modules that are no part of build()'s: {strangers}")
    blocks = list(dict.fromkeys(blocks))
    owners: dict[nn.Parameter, int] = {}
    for owner in (_parameters_outside(module, set(blocks)), *(set(block.parameters()) for block in blocks)):
        for parameter in owner:
            owners[parameter] = owners.get(parameter, 0) + 1
    units = [block for block in blocks if all(owners[parameter] == 1 for parameter in block.parameters())]
    if len(units) < len(blocks):
        _log.warning(
            "%d of %d blocks share parameters with other parts and are sharded with the root",
            len(blocks) - len(units),
            len(blocks),
        )
    return units


def cast_inputs(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point inputs of `module`'s forward to `dtype`, as FSDP's mixed precision does for its units."""

    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    def before_forward(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(cast, args), tree_map(cast, kwargs)

    module.register_forward_pre_hook(before_forward, with_kwargs=True)


def _parameters_outside(module: nn.Module, blocks: set[nn.Module]) -> set[nn.Parameter]:
    return {
        parameter for part in _walk(module, blocks, set()) for parameter in part.parameters(recurse=False)
    }


def _walk(module: nn.Module, blocks: set[nn.Module], seen: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield `module` and its parts, without going into blocks."""
    if module in blocks or module in seen:
        return
    seen.add(module)
    yield module
    for child in module.children():
        yield from _walk(child, blocks, seen)
