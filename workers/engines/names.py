"""What a module calls its tensors, read once before an engine changes the module."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Names that a checkpoint needs and that a wrapped module no longer tells."""

    aliases: Mapping[str, str]  # tied name -> stored name, both with their `model.` or `buffer.` prefix
    persistent_buffers: frozenset[str]


def read_names(module: nn.Module) -> ModuleNames:
    """Read the names of a module as its task built it."""
    aliases: dict[str, str] = {}
    stored: dict[int, str] = {}
    for prefix, tensors in (
        ("model", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in tensors:
            first = stored.setdefault(id(tensor), f"{prefix}.{name}")
            if first != f"{prefix}.{name}":
                aliases[f"{prefix}.{name}"] = first
    saved = module.state_dict().keys()
    buffers = frozenset(name for name, _ in module.named_buffers() if name in saved)
    kept = {
        alias: first
        for alias, first in aliases.items()
        if first.startswith("model.") or first.removeprefix("buffer.") in buffers
    }
    return ModuleNames(aliases=kept, persistent_buffers=buffers)
