"""What a rank sends in a step, by collective. Pure.

In elements (Rajbhandari et al. 2020, section 7; with A micro-batches a step): stages 0 and 1 reduce and gather once, 2P;
stage 2 reduces after each backward and gathers once, (A + 1)P; stage 3 gathers for each forward and backward and reduces
after each, 3AP. A ring sends (N - 1) / N of each. Weights are gathered in compute precision; gradients are reduced in
`precision.reduce`.
"""

from dataclasses import dataclass

from workers.contract.config import Engine
from workers.planner.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that a rank sends in a step."""

    all_gather: int = 0
    reduce_scatter: int = 0
    all_reduce: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.all_gather + self.reduce_scatter + self.all_reduce


def traffic(
    shape: ModelShape,
    engine: Engine,
    *,
    compute_bytes: int,
    reduce_bytes: int,
    accumulation: int,
    world_size: int,
) -> Traffic:
    """Return the bytes of one step with `accumulation` micro-batches."""
    group = min(engine.shard_group_size or world_size, world_size)
    gathers, reduces = _passes(engine, accumulation)
    share = (group - 1) / group
    weights = shape.num_parameters * compute_bytes
    gradients = shape.num_trained * reduce_bytes
    if engine.stage == 0:
        return Traffic(all_reduce=round(2 * (world_size - 1) / world_size * gradients))
    copies = world_size // group
    between = 2 * (copies - 1) / copies * gradients / group if copies > 1 else 0.0
    return Traffic(
        all_gather=round(gathers * share * weights),
        reduce_scatter=round(reduces * share * gradients),
        all_reduce=round(between),
    )


def _passes(engine: Engine, accumulation: int) -> tuple[int, int]:
    """How often all weights are gathered, and all gradients reduced, in a step."""
    match engine.stage:
        case 1:
            return 1, 1
        case 2:
            return 1, accumulation
        case _:
            return 2 * accumulation, accumulation
