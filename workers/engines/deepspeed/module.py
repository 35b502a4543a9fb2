"""The module as DeepSpeed gets it: weights laid out one by one, what it must not touch put aside."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from workers.engines.batch_norm import statistics_of
from workers.engines.deepspeed.nvme import part_in_memory
from workers.engines.deepspeed.partitions import slice_of
from workers.engines.flat_shard import FlatShard
from workers.engines.weights import InitialWeights, fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A parameter that is not trained. `master` is what was given, whole or this rank's part of it, in its own dtype."""

    shape: torch.Size
    master: torch.Tensor
    start: int
    is_part: bool
    working: Callable[
        [], AbstractContextManager[torch.Tensor]
    ]  # gives what forward reads; it lies as `master` does

    def state(self) -> torch.Tensor:
        """Return what a checkpoint holds of it."""
        return FlatShard(self.master, self.shape, self.start) if self.is_part else self.master

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the master into what forward reads."""
        with self.working() as working:
            if self.master.numel() > 0:
                working.view(-1)[: self.master.numel()].copy_(self.master.view(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A module whose weights have their places."""

    module: nn.Module
    shapes: Mapping[str, torch.Size]  # of every parameter once, in the module's order
    trainable: Mapping[str, nn.Parameter]  # those that DeepSpeed trains
    empty: Mapping[
        str, nn.Parameter
    ]  # trainable ones without elements: no engine could tell whether they are trained
    frozen: Mapping[str, Frozen]
    masters: Mapping[
        str, torch.Tensor
    ]  # first values in fp32, where DeepSpeed would make its masters from rounded ones
    is_cut: bool

    def working(self) -> list[torch.Tensor]:
        """Return what forward reads, as it lies when nothing is gathered."""
        if self.is_cut:
            return [p.ds_tensor for p in self.module.parameters()]  # type: ignore[attr-defined]
        return [p.detach() for p in self.module.parameters()]

    def forget_copies(self) -> None:
        """Let hpZ copy every part anew within its group: of what is frozen DeepSpeed keeps its first copy for ever."""
        if self.is_cut:
            for parameter in self.module.parameters():
                parameter.ds_secondary_tensor = None  # type: ignore[attr-defined]


class Cutter(Protocol):
    """What cuts a whole parameter into this rank's part, in place: stage 3."""

    def __call__(self, parameter: nn.Parameter) -> None: ...


def lay_out(
    module: nn.Module,
    weights: InitialWeights,
    *,
    compute: torch.dtype,
    rank: int,
    device: torch.device,
    cut: Cutter | None,
) -> LaidOut:
    """Give every parameter its first value, one at a time, and cut it where `cut` is given. Every rank calls it.

    What is frozen is read in the dtype `compute`, as all the rest; DeepSpeed casts what it trains by itself.
    """
    places = {
        name: _lay_out_one(
            module, name, parameter, weights, compute=compute, rank=rank, device=device, cut=cut
        )
        for name, parameter in list(module.named_parameters())
    }
    return LaidOut(
        module=module,
        shapes={name: place.shape for name, place in places.items()},
        trainable={name: place.parameter for name, place in places.items() if place.is_trained},
        empty={name: place.parameter for name, place in places.items() if place.is_empty},
        frozen={name: place.frozen for name, place in places.items() if place.frozen is not None},
        masters={name: place.master for name, place in places.items() if place.master is not None},
        is_cut=cut is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What became of one parameter."""

    parameter: nn.Parameter
    shape: torch.Size
    frozen: Frozen | None = None
    master: torch.Tensor | None = None

    @property
    def is_empty(self) -> bool:
        return self.frozen is None and self.shape.numel() == 0

    @property
    def is_trained(self) -> bool:
        return self.frozen is None and self.shape.numel() > 0


def _lay_out_one(
    module: nn.Module,
    name: str,
    parameter: nn.Parameter,
    weights: InitialWeights,
    *,
    compute: torch.dtype,
    rank: int,
    device: torch.device,
    cut: Cutter | None,
) -> _Place:
    """Place one parameter; its value is let go of before the next one is asked for."""
    shape = parameter.shape
    value = weights.take(name, parameter).to(device)
    is_cast = not parameter.requires_grad and value.is_floating_point()
    fill(parameter, value.to(compute) if is_cast else value)
    start, length = 0, value.numel()
    if value.numel() == 0:
        _hide(module, parameter, compute)
    elif cut is not None:
        cut(parameter)
        start, length = slice_of(parameter, rank)
    is_part = cut is not None and value.numel() > 0
    mine = value.view(-1)[start : start + length].clone() if is_part else value
    if not parameter.requires_grad:
        working = partial(part_in_memory, parameter) if is_part else partial(_as_it_lies, parameter)
        frozen = Frozen(shape=shape, master=mine, start=start, is_part=is_part, working=working)
        return _Place(parameter=parameter, shape=shape, frozen=frozen)
    keeps = compute != torch.float32 and value.numel() > 0
    return _Place(parameter=parameter, shape=shape, master=mine.clone() if keeps else None)


def _hide(module: nn.Module, parameter: nn.Parameter, compute: torch.dtype) -> None:
    """Leave a parameter without elements to forward as a plain tensor: DeepSpeed 0.19.8 can neither cut nor flatten one."""
    for part in module.modules():
        for leaf in [leaf for leaf, known in part._parameters.items() if known is parameter]:
            del part._parameters[leaf]
            setattr(part, leaf, parameter.detach().to(compute))


@contextmanager
def _as_it_lies(parameter: nn.Parameter) -> Iterator[torch.Tensor]:
    yield parameter.detach()


class keep_buffers(AbstractContextManager[None]):  # noqa: N801 -- reads as a verb
    """Puts buffers back that DeepSpeed casts together with the weights: tables and statistics stay as they were built."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module, self._device = module, device
        self._buffers = [
            (part, name, buffer)
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]

    def __exit__(self, *error: Any) -> None:
        for part, name, buffer in self._buffers:
            part._buffers[name] = buffer.to(self._device)


def normalise_in_fp32(module: nn.Module) -> None:
    """Let batch normalisation read its scale and shift in the dtype of its statistics, as torch's kernels want them."""
    for part in statistics_of(module):
        part.register_forward_pre_hook(_read_in_fp32)
        part.register_forward_hook(_read_again, always_call=True)


def _read_in_fp32(part: nn.Module, _args: Any) -> None:
    for name, parameter in part._parameters.items():
        if parameter is not None:
            part.__dict__[name] = parameter.float()  # found before the parameter itself


def _read_again(part: nn.Module, _args: Any, _output: Any) -> None:
    for name in part._parameters:
        part.__dict__.pop(name, None)
