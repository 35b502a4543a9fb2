"""Which sequences each rank trains in each step: a pure function of the step and the world size.

The run reads one endless stream of *global indices* 0, 1, 2, ...; step s covers
[s * global_sequences, (s + 1) * global_sequences). Cut over ranks in rank order, then over micro-steps.
So the position of a run is one integer, and the global batch is the same at every world size.
"""

from dataclasses import dataclass
from typing import Final, Literal

AUTO_MICRO_LIMIT: Final = (
    8  # sequences per forward that `micro: auto` takes at most, until the planner decides
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Global indices [first, first + count) of one forward; count 0 is a zero-weight forward that keeps step with the others."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a global batch is cut at one world size."""

    global_sequences: int
    world_size: int
    micro: int
    accumulation: int

    def step_indices(self, step: int) -> range:
        """Global indices of the whole step (0-based)."""
        return range(step * self.global_sequences, (step + 1) * self.global_sequences)

    def micro_batches(self, *, step: int, rank: int) -> tuple[MicroBatch, ...]:
        """What `rank` computes in `step`: exactly `accumulation` micro-batches, the same number on every rank."""
        base, extra = divmod(self.global_sequences, self.world_size)
        first = step * self.global_sequences + rank * base + min(rank, extra)
        left = base + (1 if rank < extra else 0)
        batches = []
        for _ in range(self.accumulation):
            count = min(self.micro, left)
            batches.append(MicroBatch(first=first, count=count))
            first += count
            left -= count
        return tuple(batches)


def plan_batch(*, global_sequences: int, world_size: int, micro: int | Literal["auto"]) -> BatchPlan:
    """Cut `global_sequences` over `world_size` ranks into equally many micro-steps of at most `micro` sequences."""
    assert 0 < world_size <= global_sequences, (world_size, global_sequences)
    per_rank = -(-global_sequences // world_size)
    size = min(per_rank, AUTO_MICRO_LIMIT if micro == "auto" else micro)
    return BatchPlan(
        global_sequences=global_sequences,
        world_size=world_size,
        micro=size,
        accumulation=-(-per_rank // size),
    )
