"""Rows side by side, and which one to take. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from workers.contract.config import Engine, TrainingConfig
from workers.contract.plan import PlanRow
from workers.engines.buckets import BUCKET_BYTES
from workers.planner.activations import Activations
from workers.planner.partition import moments, static
from workers.planner.shape import ModelShape
from workers.planner.traffic import traffic

CHECKPOINTING: Final = ("none", "selective", "full")
PLACES: Final = ("none", "cpu", "nvme")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What all rows have in common."""

    config: TrainingConfig
    shape: ModelShape
    compute_bytes: int
    reduce_bytes: int
    workers: int
    accumulation: int
    activations: Mapping[str, Activations]  # by activation checkpointing


def rows(ask: Ask) -> tuple[PlanRow, ...]:
    """Return every row that a job file may ask for, the one that this job asks for marked."""
    asked = _key(ask.config.engine)
    found = [_row(ask, engine, is_asked=_key(engine) == asked) for engine in engines(ask.config)]
    if not any(row.is_asked for row in found):
        found.insert(0, _row(ask, ask.config.engine, is_asked=True))
    return tuple(found)


def engines(config: TrainingConfig) -> Iterator[Engine]:
    """Yield every engine x stage x offload x activation checkpointing that the product's own rules take with this job."""
    for kind in ("ddp", "fsdp", "deepspeed"):
        for stage in range(4):
            for optimizer in PLACES:
                for params in PLACES:
                    for kept in CHECKPOINTING:
                        engine = _engine(config, kind, stage, optimizer, params, kept)
                        if engine is not None:
                            yield engine


def _engine(
    config: TrainingConfig, kind: str, stage: int, optimizer: str, params: str, kept: str
) -> Engine | None:
    offload = {"optimizer": optimizer, "params": params}
    if "nvme" in (optimizer, params):
        offload["nvme_path"] = config.engine.offload.nvme_path or "/nvme"
    section = {
        "kind": kind,
        "zero_stage": stage,
        "offload": offload,
        "activation_checkpointing": kept,
        "prefetch": config.engine.prefetch.model_dump(),
    }
    content = config.model_dump(mode="json", exclude_unset=True) | {"engine": section}
    try:
        return TrainingConfig.model_validate(content).engine
    except ValidationError:
        return None


def _key(engine: Engine) -> tuple[object, ...]:
    offload = engine.offload
    return (
        engine.kind,
        engine.stage,
        offload.optimizer,
        offload.params,
        engine.activation_checkpointing,
        engine.shard_group_size,
    )


def name_of(engine: Engine) -> str:
    """`fsdp-3`, `deepspeed-2 optimizer:cpu`, with what is kept of activations behind it."""
    words = [engine.kind if engine.kind == "ddp" else f"{engine.kind}-{engine.stage}"]
    if engine.shard_group_size:
        words.append(f"groups:{engine.shard_group_size}")
    places = (("optimizer", engine.offload.optimizer), ("params", engine.offload.params))
    words += [f"{what}:{place}" for what, place in places if place != "none"]
    if engine.activation_checkpointing != "none":
        words.append(f"recompute:{engine.activation_checkpointing}")
    return " ".join(words)


def _row(ask: Ask, engine: Engine, *, is_asked: bool) -> PlanRow:
    optimizer = ask.config.train.optimizer
    held = static(ask.shape, engine, optimizer, compute_bytes=ask.compute_bytes, world_size=ask.workers)
    sent = traffic(
        ask.shape,
        engine,
        compute_bytes=ask.compute_bytes,
        reduce_bytes=ask.reduce_bytes,
        accumulation=ask.accumulation,
        world_size=ask.workers,
    )
    section = engine.model_dump(mode="json", exclude_unset=True, exclude={"raw"})
    return PlanRow(
        name=name_of(engine),
        engine=section,
        parameters=held.parameters,
        gradients=held.gradients,
        optimizer_state=held.optimizer_state,
        buffers=held.buffers,
        activations=ask.activations[engine.activation_checkpointing].peak,
        communication=_communication(ask, engine),
        host=held.host + _staged(ask),
        nvme=held.nvme,
        all_gather=sent.all_gather,
        reduce_scatter=sent.reduce_scatter,
        all_reduce=sent.all_reduce,
        is_asked=is_asked,
    )


def _communication(ask: Ask, engine: Engine) -> int:
    """Weights that are gathered at the peak, and gradients on their way: the two largest units, or all of them at stage 2."""
    trained = ask.shape.num_trained
    if engine.stage in (0, 1) or (engine.kind == "deepspeed" and engine.stage == 2):
        return min(BUCKET_BYTES, trained * ask.reduce_bytes)
    sizes = {unit: sum(weight.numel for weight in weights) for unit, weights in ask.shape.by_unit().items()}
    root, blocks = sizes.pop(0), sorted(sizes.values(), reverse=True)
    largest = blocks[0] if blocks else root
    if engine.stage == 2:
        gathered = ask.shape.num_parameters
    else:
        ahead = 1 + max(engine.prefetch.forward, engine.prefetch.backward)
        gathered = root + sum(blocks[:ahead])
    return gathered * ask.compute_bytes + largest * ask.reduce_bytes


def _staged(ask: Ask) -> int:
    """The copy of this rank's part of a checkpoint: fp32 masters and moments."""
    share = -(-ask.shape.num_trained // ask.workers)
    return share * 4 * (1 + moments(ask.config.train.optimizer))


def recommend(found: tuple[PlanRow, ...], device_bytes: int | None) -> tuple[tuple[PlanRow, ...], str, str]:
    """Mark the row that costs least of those that fit; return all, why it is that one, and advice for the row asked for."""
    fitting = [row for row in found if row.fits(device_bytes) is not False and row.nvme == 0]
    fitting = fitting or [row for row in found if row.fits(device_bytes)]
    if not fitting:
        smallest = min(found, key=lambda row: row.peak)
        advice = f"no row fits: the smallest, {smallest.name}, needs more; use more workers, or a smaller micro-batch"
        return found, "", advice
    best = min(fitting, key=_cost)
    marked = tuple(row.model_copy(update={"is_recommended": row is best}) for row in found)
    reason = "of the rows that fit, it recomputes and offloads least, and then sends least"
    return marked, reason, _advice(found, fitting, device_bytes)


def _advice(found: tuple[PlanRow, ...], fitting: list[PlanRow], device_bytes: int | None) -> str:
    asked = next(row for row in found if row.is_asked)
    if asked.fits(device_bytes) is not False:
        return ""
    nearest = min(fitting, key=lambda row: (_changes(asked, row), _cost(row)))
    return f"it does not fit; the cheapest change that does: {nearest.name}"


def _cost(row: PlanRow) -> tuple[int, int, int, int]:
    """What a row costs: offload, then recomputation, then what is sent; at last the peak."""
    offload = row.engine.get("offload")
    places = offload if isinstance(offload, Mapping) else {}
    moved = sum(PLACES.index(str(places.get(what, "none"))) for what in ("optimizer", "params"))
    kept = CHECKPOINTING.index(str(row.engine.get("activation_checkpointing", "none")))
    return moved, kept, row.sent, row.peak


def _changes(one: PlanRow, other: PlanRow) -> int:
    return sum(one.engine.get(key) != other.engine.get(key) for key in {*one.engine, *other.engine})


def largest_micro(peak_of: Callable[[int], int], device_bytes: int, *, limit: int) -> int | None:
    """Return the largest micro-batch up to `limit` whose peak is at most `device_bytes`; None where 1 is too many.

    `peak_of` never falls with the micro-batch.
    """
    if peak_of(1) > device_bytes:
        return None
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if peak_of(middle) <= device_bytes else (low, middle - 1)
    return low
