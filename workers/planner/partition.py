"""Which bytes lie on a rank all the time: the engines' own arithmetic, padding included. Pure.

Mixed precision with Adam holds 16 bytes a parameter (Rajbhandari et al. 2020, ZeRO, section 3.1): 2 of the parameter, 2 of
its gradient, 12 of the fp32 master and two moments. Our gradients are summed in fp32 (4 bytes), `fsdp` reads its fp32
shards as parameters and has no other master, and DeepSpeed keeps both; so each engine has its own sums below.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Final

from workers.contract.config import Engine, Optimizer
from workers.planner.shape import ModelShape, Weight

FP32: Final = 4
FLAT_ALIGNMENT: Final = 2  # elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """Bytes of a rank. `host` and `nvme` are what is offloaded to; the rest lies on the device."""

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    buffers: int = 0
    host: int = 0
    nvme: int = 0

    @property
    def device(self) -> int:
        """All that lies on the device."""
        return self.parameters + self.gradients + self.optimizer_state + self.buffers


def static(
    shape: ModelShape,
    engine: Engine,
    optimizer: Optimizer,
    *,
    compute_bytes: int,
    world_size: int,
    rank: int = 0,
) -> Static:
    """Return what a rank holds after its first step. `compute_bytes` is the size of an element in forward."""
    match engine.kind:
        case "ddp":
            found = _replicated(shape.weights, optimizer, compute_bytes)
        case "fsdp":
            found = _sharded(shape, engine, optimizer, compute_bytes, world_size, rank)
        case _:
            found = _zero(shape, engine, optimizer, compute_bytes, world_size, rank)
    return Static(**{**found, "buffers": shape.buffer_bytes})


def moments(optimizer: Optimizer) -> int:
    """Return how many fp32 values the optimizer keeps of an element: 2 of Adam, 1 of momentum."""
    if optimizer.name == "adamw":
        return 2
    return 1 if optimizer.betas[0] > 0 else 0


def _replicated(weights: Iterable[Weight], optimizer: Optimizer, compute_bytes: int) -> dict[str, int]:
    """Everything on every rank; a master of its own where forward reads another dtype."""
    parameters = gradients = state = 0
    for weight in weights:
        has_copy = _is_cast(weight, compute_bytes)
        parameters += weight.numel * (compute_bytes if has_copy else weight.item_bytes)
        state += weight.numel * weight.item_bytes if has_copy else 0
        if weight.is_trained:
            state += weight.numel * FP32 * moments(optimizer) + _step_bytes(optimizer)
            gradients += weight.numel * FP32
    return {"parameters": parameters, "gradients": gradients, "optimizer_state": state}


def _is_cast(weight: Weight, compute_bytes: int) -> bool:
    """Whether forward reads a copy in another dtype. What has 0 dims takes part in arithmetic of any dtype."""
    wanted = FP32 if weight.keeps_fp32 else compute_bytes
    return weight.is_float and len(weight.shape) > 0 and weight.item_bytes != wanted


def _step_bytes(optimizer: Optimizer) -> int:
    return FP32 if optimizer.name == "adamw" else 0


def _sharded(
    shape: ModelShape,
    engine: Engine,
    optimizer: Optimizer,
    compute_bytes: int,
    world_size: int,
    rank: int,
) -> dict[str, int]:
    """`fully_shard`: equally many rows on each rank, padded in parameters and gradients; moments have no padding."""
    group = min(engine.shard_group_size or world_size, world_size)
    found = _replicated([w for w in shape.weights if not w.is_cut], optimizer, compute_bytes)
    for weight in shape.weights:
        if not weight.is_cut:
            continue
        rows = ceil(weight.shape[0] / group)
        row = weight.numel // weight.shape[0]
        mine = max(0, min(rows, weight.shape[0] - rows * (rank % group))) * row
        found["parameters"] += rows * row * weight.item_bytes
        if weight.is_trained:
            found["gradients"] += rows * row * FP32
            found["optimizer_state"] += mine * FP32 * moments(optimizer) + _step_bytes(optimizer)
    if engine.offload.params == "cpu":
        moved = ("parameters", "gradients", "optimizer_state")
        return {"host": sum(found[name] for name in moved)}
    return found


def _zero(
    shape: ModelShape, engine: Engine, optimizer: Optimizer, compute_bytes: int, world_size: int, rank: int
) -> dict[str, int]:
    """DeepSpeed: from stage 1 on an fp32 master of its own beside what forward reads, cut flat over ranks."""
    trained = [weight for weight in shape.weights if weight.is_trained and weight.numel]
    frozen = [weight for weight in shape.weights if not weight.is_trained]
    steps = len(trained) * _step_bytes(optimizer)
    if engine.stage == 0:
        found = _replicated(shape.weights, optimizer, compute_bytes)
    elif engine.stage == 3:
        share = sum(ceil(weight.numel / world_size) for weight in trained)
        kept = sum(_part(weight.numel, world_size, rank) * weight.item_bytes for weight in frozen)
        parts = sum(ceil(weight.numel / world_size) for weight in (*trained, *frozen))
        found = {
            "parameters": parts * compute_bytes,
            "gradients": share * FP32,
            "optimizer_state": share * FP32 * (1 + moments(optimizer)) + steps + kept,
        }
    else:
        found = _flat(trained, frozen, optimizer, compute_bytes, world_size, rank)
        found["optimizer_state"] += steps
    return _moved(found, engine)


def _part(elements: int, world_size: int, rank: int) -> int:
    """Return how many elements of a flat whole are a rank's, without padding."""
    share = ceil(elements / world_size)
    return max(0, min(share, elements - share * rank))


def _flat(
    trained: list[Weight],
    frozen: list[Weight],
    optimizer: Optimizer,
    compute_bytes: int,
    world_size: int,
    rank: int,
) -> dict[str, int]:
    """Stages 1 and 2: one flat buffer, padded so that every rank's part begins on two elements (DeepSpeed 0.19.8)."""
    elements = sum(weight.numel for weight in trained)
    share = ceil(elements / (FLAT_ALIGNMENT * world_size)) * FLAT_ALIGNMENT
    gradients = share
    if (
        compute_bytes == FP32
    ):  # no copy is made: what backward left of each parameter of this part stays, whole
        first, last = rank * share, (rank + 1) * share
        gradients = max(0, min(last - elements, share))  # the padding
        start = 0
        for weight in trained:
            gradients += weight.numel if start < last and start + weight.numel > first else 0
            start += weight.numel
    kept = sum(weight.numel * weight.item_bytes for weight in frozen if _is_cast(weight, compute_bytes))
    return {
        "parameters": (share * world_size + sum(weight.numel for weight in frozen)) * compute_bytes,
        "gradients": gradients * FP32,
        "optimizer_state": share * FP32 * (1 + moments(optimizer)) + kept,
    }


def _moved(found: dict[str, int], engine: Engine) -> dict[str, int]:
    """Count what is offloaded where it lies."""
    host = nvme = 0
    for what, place in (("optimizer_state", engine.offload.optimizer), ("parameters", engine.offload.params)):
        if place == "none":
            continue
        moved, found[what] = found[what], 0
        host, nvme = (host + moved, nvme) if place == "cpu" else (host, nvme + moved)
    return found | {"host": host, "nvme": nvme}


def paper_bytes(parameters: float, *, stage: int, world_size: int) -> float:
    """Return the bytes of a device by the paper's own sums: 2 + 2 + K bytes a parameter, K = 12 (ZeRO, figure 1).

    Gradients in half precision, which ours are not: for comparison.
    """
    weights, gradients, optimizer = 2.0, 2.0, 12.0
    if stage >= 1:
        optimizer /= world_size
    if stage >= 2:
        gradients /= world_size
    if stage >= 3:
        weights /= world_size
    return parameters * (weights + gradients + optimizer)
