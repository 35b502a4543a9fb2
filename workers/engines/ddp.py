"""`ddp` (ZeRO stage 0): every rank holds everything; gradients are summed over ranks.

With bf16 compute the module holds bf16 copies, the masters and the gradient sums are fp32. Casts lie where FSDP's do,
so both engines compute the same.
"""

from collections.abc import Sequence

import torch
from torch import nn

from workers.contract.config import Precision
from workers.engines.batch_norm import statistics_parameters
from workers.engines.buckets import GradientBuckets
from workers.engines.layout import publish, replicated
from workers.engines.precision import torch_dtype
from workers.engines.units import cast_inputs
from workers.engines.weights import InitialWeights, fill
from workers.world import World


class ReplicatedLayout:
    """Implements `Layout` for whole parameters on every rank."""

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module],
        weights: InitialWeights,
        precision: Precision,
        world: World,
    ) -> None:
        for name, parameter in module.named_parameters():
            fill(parameter, weights.take(name, parameter).to(world.device))
        module.to(world.device)  # the buffers
        compute = torch_dtype(precision.params)
        kept = statistics_parameters(module)
        self.parameters = [
            replicated(name, working, torch.float32 if working in kept else compute)
            for name, working in module.named_parameters()
        ]
        self.num_copies = 1
        if compute != torch.float32:
            for unit in (module, *units):
                cast_inputs(unit, compute)
        self._trainable = [p for p in self.parameters if p.master.requires_grad]
        self._buckets = GradientBuckets(
            [p.working for p in self._trainable], world.group, torch_dtype(precision.reduce)
        )

    def before_backward(self, *, is_first: bool, is_last: bool) -> None:
        """See `Layout`."""
        self._buckets.before_backward(is_first=is_first, is_last=is_last)

    def reduce_gradients(self) -> None:
        """See `Layout`."""
        for parameter, total in zip(self._trainable, self._buckets.finish(), strict=True):
            parameter.master.grad = total

    def clear_gradients(self) -> None:
        """See `Layout`; the sums' memory stays for the next step."""
        for parameter in self._trainable:
            parameter.master.grad = None

    def publish_masters(self) -> None:
        """See `Layout`."""
        publish(self.parameters)

    def drop_gathered(self) -> None:
        """See `Layout`; nothing is ever gathered."""
