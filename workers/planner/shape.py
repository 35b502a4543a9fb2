"""What of a model decides about bytes: its parameters by unit. Read from a module that has no memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from workers.engines.batch_norm import statistics_parameters
from workers.engines.sharding import kept_whole
from workers.engines.units import sharding_units


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int  # of the dtype that the task gives it
    is_trained: bool
    is_float: bool
    is_cut: bool  # by `fsdp`: it has rows
    keeps_fp32: bool  # a scale or shift of batch normalisation
    unit: int  # gathered together with the others of the same number; 0: the root's

    @property
    def numel(self) -> int:
        """Elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """All of a model."""

    weights: Sequence[Weight]
    buffer_bytes: int
    num_blocks: int

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters, tied ones once."""
        return sum(weight.numel for weight in self.weights)

    @property
    def num_trained(self) -> int:
        """Elements that are trained."""
        return sum(weight.numel for weight in self.weights if weight.is_trained)

    def by_unit(self) -> Mapping[int, list[Weight]]:
        """Weights by unit, the root's first."""
        units: dict[int, list[Weight]] = {0: []}
        for weight in self.weights:
            units.setdefault(weight.unit, []).append(weight)
        return units


def read_shape(module: nn.Module, blocks: Sequence[nn.Module]) -> ModelShape:
    """Read a module as its task built it, on the meta device or with fake tensors."""
    units = sharding_units(module, blocks)
    unit_of = {id(p): number for number, unit in enumerate(units, start=1) for p in unit.parameters()}
    whole, statistics = kept_whole(module), statistics_parameters(module)
    return ModelShape(
        weights=tuple(
            Weight(
                name=name,
                shape=tuple(parameter.shape),
                item_bytes=parameter.dtype.itemsize,
                is_trained=parameter.requires_grad,
                is_float=parameter.is_floating_point(),
                is_cut=parameter not in whole and parameter not in statistics,
                keeps_fp32=parameter in statistics,
                unit=unit_of.get(id(parameter), 0),
            )
            for name, parameter in module.named_parameters()
        ),
        buffer_bytes=sum(buffer.numel() * buffer.dtype.itemsize for buffer in module.buffers()),
        num_blocks=len(blocks),
    )
