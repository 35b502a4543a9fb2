"""First weights of a transformers model, one parameter at a time: read from safetensors, or drawn as transformers does."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from torch import nn

from workers.errors import ConfigError

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


class StoredWeights:
    """Tensors of a checkpoint by name. A file is mapped, so that only what is asked for is read."""

    def __init__(self, directory: Path) -> None:
        """Read the names alone. Raises ConfigError where there are no safetensors."""
        self._directory = directory
        self._file_of = _files_by_name(directory)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor, whole. Raises ConfigError for a name that the checkpoint does not have."""
        if name not in self._file_of:
            raise ConfigError(
                f"model.path: {self._directory} holds no {name}: it is a checkpoint of another model; "
                "say `weights: random` to begin anew"
            )
        with safe_open(self._directory / self._file_of[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def _files_by_name(directory: Path) -> Mapping[str, str]:
    index = directory / _INDEX
    if index.is_file():
        found: Mapping[str, str] = json.loads(index.read_text())["weight_map"]
        return found
    if not (directory / _SINGLE).is_file():
        raise ConfigError(f"model.path: {directory} holds neither {_SINGLE} nor {_INDEX}")
    with safe_open(directory / _SINGLE, framework="pt") as file:
        return dict.fromkeys(file.keys(), _SINGLE)


class DrawnWeights:
    """First values drawn as the model's own code draws them, each from a seed of its own."""

    def __init__(self, model: nn.Module, *, seed: int) -> None:
        """Remember the parts of `model` as they are now, on the meta device, before an engine changes them."""
        self._seed = seed
        self._owners = {
            f"{path}.{leaf}" if path else leaf: shell
            for path, part in model.named_modules()
            for shell in [_without_children(part)]
            for leaf, parameter in part._parameters.items()
            if parameter is not None
        }

    def draw(self, name: str, initialise: Callable[[nn.Module], None]) -> torch.Tensor:
        """Return a first value of the parameter `name`: fp32, a function of seed and name alone.

        `initialise` fills the parameters of one module in place; it gets a copy of the one that owns the parameter.
        """
        owner = _without_children(self._owners[name]).to_empty(device="cpu")
        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int.from_bytes(digest, "little") >> 1)
            initialise(owner)
        value = owner._parameters[name.rpartition(".")[2]]
        assert value is not None
        return value.detach().float()


def _without_children(module: nn.Module) -> nn.Module:
    """Return a copy with parameters of its own, on the same device, and nothing below it."""
    shell = copy.copy(module)
    shell._modules, shell._buffers = {}, {}
    shell._parameters = {
        leaf: None if parameter is None else nn.Parameter(parameter.detach().clone(), requires_grad=False)
        for leaf, parameter in module._parameters.items()
    }
    return shell


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Let modules that are built inside have their parameters on the meta device, and their buffers for real."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
