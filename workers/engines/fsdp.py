"""`fsdp` (ZeRO stages 2 and 3): PyTorch's `fully_shard`, every parameter cut along its first dimension.

Stage 3 gathers a unit for its forward and again for its backward. Stage 2 keeps what it gathered until the last
backward of the step, also between micro-batches. Gradients are reduced to shards after every backward.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from workers.contract.config import Engine as EngineConfig
from workers.contract.config import Precision, Prefetch
from workers.engines.buckets import GradientBuckets
from workers.engines.layout import LocalParameter, at_place_of, publish, replicated
from workers.engines.precision import torch_dtype
from workers.engines.weights import InitialWeights, fill
from workers.world import World


class ShardedLayout:
    """Implements `Layout` for parameters cut over all ranks; the few that cannot be cut are replicated."""

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module],
        weights: InitialWeights,
        engine: EngineConfig,
        precision: Precision,
        world: World,
    ) -> None:
        self._keeps_gathered = engine.stage == 2
        self._root = _shard(module, units, engine, precision, world)
        _fill_shards(module, weights, world)
        compute = torch_dtype(precision.params)
        self.parameters = [_view(name, working, compute) for name, working in module.named_parameters()]
        trainable = [p for p in self.parameters if p.master.requires_grad]
        self._sharded = [p for p in trainable if p.is_sharded]
        self._replicated = [p for p in trainable if not p.is_sharded]
        self._buckets = GradientBuckets(
            [p.working for p in self._replicated], world.group, torch_dtype(precision.reduce)
        )

    def before_backward(self, *, is_first: bool, is_last: bool) -> None:
        """See `Layout`."""
        self._buckets.before_backward(is_first=is_first, is_last=is_last)
        if self._keeps_gathered:
            self._root.set_reshard_after_backward(is_last)

    def reduce_gradients(self) -> None:
        """See `Layout`; the shards were reduced during backward already."""
        for parameter in self._sharded:
            grad = parameter.working.grad
            parameter.master.grad = grad.to_local() if isinstance(grad, DTensor) else None
        for parameter, total in zip(self._replicated, self._buckets.finish(), strict=True):
            parameter.master.grad = total

    def clear_gradients(self) -> None:
        """See `Layout`."""
        for parameter in (*self._sharded, *self._replicated):
            parameter.master.grad = parameter.working.grad = None

    def publish_masters(self) -> None:
        """See `Layout`; of shards each gather reads the masters' own memory."""
        publish(self.parameters)


def _shard(
    module: nn.Module,
    units: Sequence[nn.Module],
    engine: EngineConfig,
    precision: Precision,
    world: World,
) -> FSDPModule:
    mesh = init_device_mesh(world.device.type, (world.world_size,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch_dtype(precision.params), reduce_dtype=torch_dtype(precision.reduce)
    )
    # fully_shard refuses 0-dim parameters; those without elements have nothing to cut.
    whole = {p for p in module.parameters() if p.ndim == 0 or p.numel() == 0}
    for unit in units:
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=engine.stage == 3,
            mp_policy=policy,
            ignored_params=whole,
        )
    # The root's own parameters (embedding, head) are needed last in forward and first in backward: kept in between.
    root = fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy, ignored_params=whole)
    # Our loss is divided by the global token count already, so gradients are summed. (gloo has no pre-multiplied sum.)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(enable=True)
    _set_prefetch([cast(FSDPModule, unit) for unit in units], engine.prefetch)
    return root


def _fill_shards(module: nn.Module, weights: InitialWeights, world: World) -> None:
    """Give each parameter of the sharded module its value: this rank's rows of it, or all where it was not cut."""
    owners: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for name, parameter in list(module.named_parameters()):
        if not isinstance(parameter, DTensor):
            fill(parameter, weights.take(name, parameter).to(world.device))
            continue
        local = _shard_of(weights.take(name, parameter), parameter, world)
        shard = nn.Parameter(local, requires_grad=parameter.requires_grad)
        for place in owners[id(parameter)]:
            path, _, leaf = place.rpartition(".")
            # `load_state_dict` and not `setattr`: it tells FSDP, which pads the shard and keeps it from then on.
            module.get_submodule(path).load_state_dict({leaf: shard}, strict=False, assign=True)


def _shard_of(value: torch.Tensor, parameter: DTensor, world: World) -> DTensor:
    """Return this rank's rows of `value`, in memory of their own, at the place that `parameter` has."""
    axis = parameter.device_mesh.ndim - 1  # the last one shards; one before it would replicate
    rows_per_rank = -(-value.shape[0] // parameter.device_mesh.size(axis))
    first = min(parameter.device_mesh.get_local_rank(axis) * rows_per_rank, value.shape[0])
    rows = value[first : first + rows_per_rank].to(world.device, copy=True)
    return at_place_of(parameter, rows)


def _set_prefetch(units: Sequence[FSDPModule], prefetch: Prefetch) -> None:
    """Say which units are gathered ahead while one computes.

    For backward an empty list means FSDP's own guess of one (torch 2.13), so none is said as the unit itself, which
    is there already.
    """
    for i, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(list(units[i + 1 : i + 1 + prefetch.forward]))
        before = list(reversed(units[max(0, i - prefetch.backward) : i]))
        unit.set_modules_to_backward_prefetch(before or [unit])


def _view(name: str, working: nn.Parameter, compute: torch.dtype) -> LocalParameter:
    """Return the parameter with its local shard as master: the same memory as FSDP's. What is not cut is replicated."""
    whole = working.detach()
    if not isinstance(whole, DTensor):
        return replicated(name, working, compute)
    master = nn.Parameter(whole.to_local(), requires_grad=working.requires_grad)
    return LocalParameter(name=name, master=master, working=working)
