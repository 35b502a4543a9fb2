"""`fsdp` (ZeRO stages 2 and 3): PyTorch's `fully_shard`, every parameter cut along its first dimension.

Stage 3 gathers a unit for its forward and again for its backward. Stage 2 keeps what it gathered until the last
backward of the step, also between micro-batches. Gradients are reduced to shards after every backward; in a hybrid
layout, whose groups of ranks hold equal shards, the groups add them up after the last.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from workers.contract.config import Engine as EngineConfig
from workers.contract.config import Precision
from workers.engines.batch_norm import statistics_parameters
from workers.engines.buckets import GradientBuckets
from workers.engines.forward_order import ForwardOrder
from workers.engines.layout import LocalParameter, publish, replicated
from workers.engines.precision import torch_dtype
from workers.engines.sharding import fill_shards, kept_whole, shard, shard_mesh, sharded_parts
from workers.engines.usage import GatheredUse
from workers.engines.weights import InitialWeights
from workers.world import World


class ShardedLayout:
    """Implements `Layout` for parameters cut over ranks; the few that cannot be cut are replicated."""

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module],
        weights: InitialWeights,
        engine: EngineConfig,
        precision: Precision,
        world: World,
    ) -> None:
        self._world = world
        self._keeps_gathered = engine.stage == 2
        mesh = shard_mesh(world, engine.shard_group_size)
        self.num_copies = mesh.size(0) if mesh.ndim == 2 else 1
        statistics = statistics_parameters(module)
        self._root = shard(module, units, kept_whole(module) | statistics, mesh, engine, precision)
        fill_shards(module, weights, device=world.device, offloads=engine.offload.params == "cpu")

        compute = torch_dtype(precision.params)
        self.parameters = [
            _view(name, working, torch.float32 if working in statistics else compute)
            for name, working in module.named_parameters()
        ]
        trainable = [p for p in self.parameters if p.master.requires_grad]
        self._sharded = [p for p in trainable if p.is_sharded]
        self._replicated = [p for p in trainable if not p.is_sharded]
        self._buckets = GradientBuckets(
            [p.working for p in self._replicated], world.group, torch_dtype(precision.reduce)
        )
        self._use = GatheredUse(
            [*units, module], {id(p.working): i for i, p in enumerate(self._sharded)}, num=len(self._sharded)
        )
        names = {id(part): name for name, part in module.named_modules()}
        ForwardOrder(module, {names[id(unit)]: unit for unit in units}, world)

    def before_backward(self, *, is_first: bool, is_last: bool) -> None:
        """See `Layout`."""
        self._buckets.before_backward(is_first=is_first, is_last=is_last)
        if is_first:
            self._use.begin_step()
        if self._keeps_gathered:
            self._root.set_reshard_after_backward(is_last)
        if self.num_copies > 1:
            self._root.set_requires_all_reduce(is_last)

    def reduce_gradients(self) -> None:
        """See `Layout`; the shards were reduced during backward already."""
        used = self._use.used_by_any(self._world)
        for parameter, is_used in zip(self._sharded, used, strict=True):
            grad = parameter.working.grad
            parameter.master.grad = grad.to_local() if is_used and isinstance(grad, DTensor) else None
        for parameter, total in zip(self._replicated, self._buckets.finish(), strict=True):
            parameter.master.grad = total

    def clear_gradients(self) -> None:
        """See `Layout`."""
        for parameter in (*self._sharded, *self._replicated):
            parameter.master.grad = parameter.working.grad = None

    def publish_masters(self) -> None:
        """See `Layout`; of shards each gather reads the masters' own memory."""
        publish(self.parameters)

    def drop_gathered(self) -> None:
        """See `Layout`."""
        for part in sharded_parts(self._root):
            part.reshard()


def _view(name: str, working: nn.Parameter, compute: torch.dtype) -> LocalParameter:
    """Return the parameter with its local shard as master: the same memory as FSDP's. What is not cut is replicated."""
    whole = working.detach()
    if not isinstance(whole, DTensor):
        return replicated(name, working, compute)
    master = nn.Parameter(whole.to_local(), requires_grad=working.requires_grad)
    return LocalParameter(name=name, master=master, working=working)
