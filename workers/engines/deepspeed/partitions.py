"""Where DeepSpeed keeps a parameter's master copy and gradient, by stage. Private attributes of DeepSpeed 0.19.8.

Everything that depends on how a stage lies in memory is here; `tests/torch/test_deepspeed.py` fails if it moves.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from workers.engines.deepspeed.optimizer import Fragment
from workers.engines.optimizer import square_sum

Opener = Callable[[torch.Tensor], AbstractContextManager[None]]
Fragments = Mapping[torch.Tensor, Sequence[Fragment]]


class Partitions(Protocol):
    """One stage's masters and gradients. All ranks make the same calls in the same order."""

    def fragments(self) -> Fragments:
        """Return each flat fp32 partition of this rank, with what lies in it."""
        ...

    def gradients(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that hold gradients after the last backward of a step."""
        ...

    def norm(self) -> float:
        """Return the L2 norm over all gradients of all ranks; NaN or infinite where one is. Collective, before a step."""
        ...

    def after_step(self) -> None:
        """Forget the gradients, whether the step was taken or not."""
        ...

    def publish(self, opened: Opener) -> None:
        """Bring what forward reads up to the masters, each partition held in memory by `opened`; collective."""
        ...

    def fetch_buffers(self) -> Sequence[torch.Tensor]:
        """Return the host memory through which parameters come from files."""
        ...


class Replicas:
    """Stage 0: every rank holds everything, DeepSpeed only reduces. A parameter is its own partition."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], device: torch.device) -> None:
        self._parameters = parameters
        self._device = device

    def fragments(self) -> Fragments:
        """See `Partitions`."""
        return {
            parameter: [
                Fragment(name=name, shape=tuple(parameter.shape), start=0, length=parameter.numel(), offset=0)
            ]
            for name, parameter in self._parameters.items()
        }

    def gradients(self) -> Iterator[torch.Tensor]:
        """See `Partitions`."""
        return (parameter.grad for parameter in self._parameters.values() if parameter.grad is not None)

    def norm(self) -> float:
        """See `Partitions`; equal on all ranks without asking, as the gradients are."""
        return math.sqrt(float(square_sum(self.gradients(), self._device)))

    def after_step(self) -> None:
        """See `Partitions`."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def publish(self, opened: Opener) -> None:
        """See `Partitions`: forward reads the masters."""

    def fetch_buffers(self) -> Sequence[torch.Tensor]:
        """See `Partitions`."""
        return ()


class FlatPartitions:
    """Stages 1 and 2: all parameters end to end, cut evenly; a rank's part begins and ends anywhere in a parameter."""

    def __init__(self, zero: Any, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take over `zero`, a DeepSpeedZeroOptimizer."""
        self._zero = zero
        self._parameters = parameters
        self._compute_norm: Callable[[], torch.Tensor] = zero.scaled_global_norm

    def fragments(self) -> Fragments:
        """See `Partitions`."""
        found: dict[torch.Tensor, list[Fragment]] = defaultdict(list)
        for name, parameter in self._parameters.items():
            mapping = parameter._hp_mapping  # type: ignore[attr-defined]
            if mapping is None:  # lies on other ranks altogether
                continue
            flat = self._zero.single_partition_of_fp32_groups[mapping.param_group_index]
            address = mapping.lp_fragment_address
            fragment = Fragment(
                name=name,
                shape=tuple(parameter.shape),
                start=int(address.start),
                length=int(address.numel),
                offset=int(mapping.hp_fragment_address.start),
            )
            found[flat].append(fragment)
        return found

    def gradients(self) -> Iterator[torch.Tensor]:
        """See `Partitions`."""
        for part in self._zero.averaged_gradients.values():
            yield from part if isinstance(part, list) else () if part is None else (part,)
        if self._zero.cpu_offload:
            yield from (flat.grad for flat in self._zero.single_partition_of_fp32_groups)

    def norm(self) -> float:
        """See `Partitions`. DeepSpeed asks for it again within the step: it gets the same, without another collective."""
        norm = self._compute_norm()
        self._zero.scaled_global_norm = lambda: norm
        return _number(norm)

    def after_step(self) -> None:
        """See `Partitions`; as DeepSpeed does where a step overflowed."""
        zero = self._zero
        zero.zero_grad(set_to_none=True)
        zero.micro_step_id = -1
        if zero.cpu_offload:
            zero.reset_cpu_buffers()
        for group in list(zero.averaged_gradients):
            zero.averaged_gradients[group] = None
            zero.all_grad_tensors[group] = None

    def publish(self, opened: Opener) -> None:
        """See `Partitions`."""
        self._zero.update_lp_params()

    def fetch_buffers(self) -> Sequence[torch.Tensor]:
        """See `Partitions`."""
        return ()


class SlicedPartitions:
    """Stage 3: each parameter cut by itself into equal flat parts, the last ones shorter or empty."""

    def __init__(self, zero: Any, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take over `zero`, a DeepSpeedZeroOptimizer_Stage3."""
        self._zero = zero
        self._parameters = parameters
        self._norms: Callable[[], Sequence[torch.Tensor]] = zero._get_norm_groups

    def fragments(self) -> Fragments:
        """See `Partitions`."""
        found: dict[torch.Tensor, list[Fragment]] = defaultdict(list)
        zero = self._zero
        for name, parameter in self._parameters.items():
            group, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
            start, length = slice_of(parameter, zero._get_param_partition_rank(parameter))
            found[zero.fp32_partitioned_groups_flat[group]].append(
                Fragment(name=name, shape=tuple(_whole(parameter)), start=start, length=length, offset=offset)
            )
        return found

    def gradients(self) -> Iterator[torch.Tensor]:
        """See `Partitions`."""
        yield self._zero.grad_partitions_flat_buffer
        if self._zero.offload_optimizer:
            yield from (
                flat.grad for flat in self._zero.fp32_partitioned_groups_flat if flat.grad is not None
            )

    def norm(self) -> float:
        """See `Partitions`. DeepSpeed asks for it again within the step: it gets the same, without another collective."""
        norms = self._norms()
        self._zero._get_norm_groups = lambda: norms
        squares = [_number(norm) ** 2 for norm in norms]
        return math.sqrt(sum(squares)) if all(map(math.isfinite, squares)) else math.nan

    def after_step(self) -> None:
        """See `Partitions`. What a step left in the buffers would be the next one's gradient of an unused parameter."""
        zero = self._zero
        zero._pre_step()
        zero._partition_all_parameters()
        zero.zero_grad(set_to_none=True)
        zero.grad_partitions_flat_buffer.zero_()
        if zero.offload_optimizer:
            zero.reset_cpu_buffers()
            for flat in zero.fp32_partitioned_groups_flat:
                if flat.grad is not None:
                    flat.grad.zero_()
        else:
            zero.averaged_gradients = {}

    def publish(self, opened: Opener) -> None:
        """See `Partitions`."""
        zero = self._zero
        zero._partition_all_parameters()  # a forward without a backward leaves some gathered
        for group, flat in enumerate(zero.fp32_partitioned_groups_flat):
            with opened(flat):
                zero._reassign_or_swap_out_partitioned_parameters(group)
        kept = zero.persistent_parameters
        if kept:
            kept[0].partition(kept)
            kept[0].all_gather(kept)
        zero.invalidate_secondary_tensor()

    def fetch_buffers(self) -> Sequence[torch.Tensor]:
        """See `Partitions`."""
        swapper = getattr(next(iter(self._parameters.values())), "nvme_swapper", None)
        return () if swapper is None else (swapper.buffers,)


def slice_of(parameter: nn.Parameter, rank: int) -> tuple[int, int]:
    """Return where this rank's part of a stage 3 parameter starts in the flat whole, and how long it is."""
    part, total = parameter.partition_numel(), parameter.ds_numel  # type: ignore[attr-defined]
    start = min(part * rank, total)
    return start, min(part, total - start)


def _whole(parameter: nn.Parameter) -> torch.Size:
    shape: torch.Size = parameter.ds_shape  # type: ignore[attr-defined]
    return shape


def _number(norm: torch.Tensor | float) -> float:
    """Return a norm as a number; DeepSpeed says -1 where it is none."""
    value = float(norm)
    return math.nan if value < 0 else value
