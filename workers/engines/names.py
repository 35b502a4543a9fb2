"""What a module calls its tensors, read once before an engine changes the module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Names that a checkpoint needs and that a wrapped module no longer tells."""

    aliases: Mapping[str, str]  # tied name -> stored name, both with their `model.` or `buffer.` prefix
    persistent_buffers: frozenset[str]
    base: frozenset[str]  # frozen parameters that no checkpoint holds (see `AdapterTask`)


def read_names(module: nn.Module, is_base: Callable[[str], bool] = lambda name: False) -> ModuleNames:
    """Read the names of a module as its task built it, with what the task says of its base."""
    base = frozenset(name for name, _ in module.named_parameters() if is_base(name))
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
    saved_names = {f"buffer.{name}" for name in buffers} | {
        f"model.{name}" for name, _ in module.named_parameters() if name not in base
    }
    kept = {alias: first for alias, first in aliases.items() if first in saved_names}
    return ModuleNames(aliases=kept, persistent_buffers=buffers, base=base)
