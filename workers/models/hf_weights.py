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

    def read(self, name: str, *, body: str) -> torch.Tensor:
        """Return one tensor, whole, in the checkpoint's dtype. Raises ConfigError for a name that it does not have.

        `body` is what the model calls itself without its head: many a checkpoint, GPT-2's own for one, was saved
        without a head and leaves it out of its names.
        """
        stored = next((n for n in (name, name.removeprefix(f"{body}.")) if n in self._file_of), None)
        if stored is None:
            raise ConfigError(
                f"model.path: {self._directory} holds no {name}: it is a checkpoint of another model, or of one whose "
                "tensors transformers converts while it reads them (mixtures of experts); use another, or say "
                "`weights: random`"
            )
        with safe_open(self._directory / self._file_of[stored], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(stored)
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
        """Keep a copy of `model` as it is now, on the meta device, before an engine changes it."""
        self._seed = seed
        self._parts = dict(copy.deepcopy(model).named_modules())

    @torch.no_grad()
    def draw(self, name: str, initialise: Callable[[nn.Module], None], *, by_parents: bool) -> torch.Tensor:
        """Return a first value of the parameter `name`: fp32, a function of seed and name alone.

        `initialise` fills in place what the module that owns the parameter holds. With `by_parents` it is called for
        that module's parents, too, inner ones first: GPT-2, for one, fills projections where their layer is known.
        What else they fill is on the meta device: it costs nothing and draws no random number.
        """
        path, _, leaf = name.rpartition(".")
        owner = self._parts[path]
        on_meta, owner._parameters = owner._parameters, _on_cpu(owner._parameters)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed_of(name))
                for part in _upwards(path) if by_parents else [path]:
                    initialise(self._parts[part])
            value: torch.Tensor | None = owner._parameters[leaf]
            assert value is not None
            return value.detach().float()
        finally:
            owner._parameters = on_meta

    def _seed_of(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


def _on_cpu(parameters: Mapping[str, nn.Parameter | None]) -> dict[str, nn.Parameter | None]:
    return {
        leaf: None if parameter is None else nn.Parameter(torch.empty_like(parameter, device="cpu"))
        for leaf, parameter in parameters.items()
    }


def _upwards(path: str) -> Iterator[str]:
    """Yield `path` and what lies above it, the whole model last: `a.b`, `a`, and the empty path."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


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
