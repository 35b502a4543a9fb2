"""Held-out samples are cut so that each counts once, on any number of ranks."""

import pytest

from workers.contract.config import TrainingConfig
from workers.evaluation import cut_held_out, is_evaluation_due


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_sequences", [1, 2, 3, 10, 21, 64])
@pytest.mark.parametrize("micro", [1, 4, 8])
def test_every_held_out_sample_counts_once_and_ranks_keep_step(
    num_sequences: int, world_size: int, micro: int
) -> None:
    """B033, B034: neither cut off at the end, nor repeated to fill up."""
    cuts = [
        cut_held_out(num_sequences, micro=micro, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    counted = [cut.first + i for of_rank in cuts for cut in of_rank for i in range(cut.count)]
    assert sorted(counted) == list(range(num_sequences))
    assert len({len(of_rank) for of_rank in cuts}) == 1
    assert all(cut.count <= micro for of_rank in cuts for cut in of_rank)


def due_steps(**validation: object) -> list[int]:
    config = TrainingConfig.model_validate(
        {
            "model": {"kind": "llama"},
            "data": {"kind": "text", "path": "x"},
            "train": {"steps": 10},
            "validation": validation,
        }
    )
    return [step for step in range(10) if is_evaluation_due(step, config)]


def test_it_is_due_every_so_many_steps_and_after_the_last() -> None:
    assert due_steps(ratio=0.1, every_steps=4) == [3, 7, 9]
    assert due_steps(every_steps=4) == []
