"""Cutting a module with `fully_shard`: over which ranks, in which units, gathered when, and filled with its first values."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from workers.contract.config import Engine as EngineConfig
from workers.contract.config import Precision, Prefetch
from workers.engines.layout import at_place_of
from workers.engines.precision import torch_dtype
from workers.engines.weights import InitialWeights, fill
from workers.errors import ConfigError
from workers.world import World


def shard_mesh(world: World, group_size: int | None) -> DeviceMesh:
    """Return one axis of all ranks, or `dp_replicate` x `dp_shard` where groups of `group_size` ranks shard; collective.

    Neighbours by rank make a group, so groups of a node's size gather within nodes. A world that is no larger than a
    group is one. Raises ConfigError where groups would not be full.
    """
    size = world.world_size
    if group_size is None or group_size >= size:
        return init_device_mesh(world.device.type, (size,), mesh_dim_names=("dp_shard",))
    if size % group_size:
        raise ConfigError(f"engine.shard_group_size {group_size} does not divide {size} workers")
    return init_device_mesh(
        world.device.type, (size // group_size, group_size), mesh_dim_names=("dp_replicate", "dp_shard")
    )


def kept_whole(module: nn.Module) -> set[nn.Parameter]:
    """Return what has nothing to cut: `fully_shard` refuses parameters of 0 dims."""
    return {p for p in module.parameters() if p.ndim == 0 or p.numel() == 0}


def shard(
    module: nn.Module,
    units: Sequence[nn.Module],
    whole: set[nn.Parameter],
    mesh: DeviceMesh,
    engine: EngineConfig,
    precision: Precision,
) -> FSDPModule:
    """Cut all parameters of `module` but `whole`, in place, and return it. Parameters stay on the meta device."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch_dtype(precision.params), reduce_dtype=torch_dtype(precision.reduce)
    )
    offload = OffloadPolicy()
    if engine.offload.params == "cpu":
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    for unit in units:
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=engine.stage == 3,
            mp_policy=policy,
            offload_policy=offload,
            ignored_params=whole,
        )
    # The root's own parameters (embedding, head) are needed last in forward and first in backward: kept in between.
    root = fully_shard(
        module,
        mesh=mesh,
        reshard_after_forward=False,
        mp_policy=policy,
        offload_policy=offload,
        ignored_params=whole,
    )
    _sum_gradients(root)
    _set_prefetch([cast(FSDPModule, unit) for unit in units], engine.prefetch)
    return root


def fill_shards(module: nn.Module, weights: InitialWeights, *, device: torch.device, offloads: bool) -> None:
    """Give each parameter of the sharded module its value: this rank's rows of it, or all where it was not cut.

    With `offloads` shards lie in host memory.
    """
    places: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    for name, parameter in list(module.named_parameters()):
        if not isinstance(parameter, DTensor):
            fill(parameter, weights.take(name, parameter).to(device))
            continue
        home = torch.device("cpu") if offloads else device
        local = at_place_of(parameter, _rows_of(weights.take(name, parameter), parameter).to(home, copy=True))
        value = nn.Parameter(local, requires_grad=parameter.requires_grad)
        for place in places[id(parameter)]:
            path, _, leaf = place.rpartition(".")
            # `load_state_dict` and not `setattr`: it tells FSDP, which pads the shard and keeps it from then on.
            module.get_submodule(path).load_state_dict({leaf: value}, strict=False, assign=True)


def sharded_parts(root: FSDPModule) -> list[FSDPModule]:
    """Return the units of a sharded module, itself first."""
    return [part for part in cast(nn.Module, root).modules() if isinstance(part, FSDPModule)]


def _rows_of(value: torch.Tensor, parameter: DTensor) -> torch.Tensor:
    """Return this rank's rows of a whole value, as `fully_shard` cuts: equally many each, the last ranks fewer or none."""
    axis = parameter.device_mesh.ndim - 1  # the last one shards; one before it replicates
    rows_per_rank = -(-value.shape[0] // parameter.device_mesh.size(axis))
    first = min(parameter.device_mesh.get_local_rank(axis) * rows_per_rank, value.shape[0])
    return value[first : first + rows_per_rank]


def _sum_gradients(root: FSDPModule) -> None:
    """Let gradients be summed, as our loss is divided by the global token count already, and all reduced always.

    (gloo has no pre-multiplied sum. And ranks that used different parts of a unit would reduce different sizes.)
    """
    for part in sharded_parts(root):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(enable=True)
    root.set_reduce_scatter_unused_params(reduce_scatter_unused_params=True)


def _set_prefetch(units: Sequence[FSDPModule], prefetch: Prefetch) -> None:
    """Say which units are gathered ahead while one computes.

    For backward an empty list means FSDP's own guess of one (torch 2.13), so none is said as the unit itself, which
    is there already.
    """
    for i, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(list(units[i + 1 : i + 1 + prefetch.forward]))
        before = list(reversed(units[max(0, i - prefetch.backward) : i]))
        unit.set_modules_to_backward_prefetch(before or [unit])
