"""A pairwise sample of `make equivalence`: any engine with any training, offload and world size, in fewer steps."""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pairwise import pairwise

from benchmarks.equivalence.matrix import DDP, WORLD_SIZES, Cell, Training, cells
from benchmarks.equivalence.model import make_task
from benchmarks.equivalence.rank import train_all
from benchmarks.equivalence.reference import Run, train_reference
from benchmarks.equivalence.rows import judge
from workers.contract.config import TrainingConfig
from workers.engines.deepspeed.ops import missing_ops
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

STEPS: Final = 5
CHEAPEST_FIRST: Final = (2, 1, 3, 4)  # world sizes, where the sample may choose: ranks share two cores


def factors(cell: Cell) -> Sequence[Hashable]:
    """Return what may matter together: the engine, where state lies, how many ranks, and what is trained."""
    variant = cell.variant
    engine = replace(variant, optimizer="none", params="none")
    return engine, variant.optimizer, variant.params, cell.world_size, cell.training


@functools.cache
def sample() -> Sequence[Cell]:
    chosen = sorted(cells(), key=lambda cell: CHEAPEST_FIRST.index(cell.world_size))
    return pairwise(chosen, factors)


@functools.cache
def reference(training: Training) -> Run:
    job = training.job(DDP, nvme_path="", steps=STEPS)
    return train_reference(make_task(training), TrainingConfig.model_validate(job))


def train_few(world: World, chosen: Sequence[Cell], nvme_path: str) -> list[Run]:
    return train_all(world, chosen, nvme_path=nvme_path, steps=STEPS)


NVME = pytest.mark.skipif(bool(missing_ops("cpu")), reason="DeepSpeed's ops are not built: `make ops`")


@pytest.mark.parametrize("needs_nvme", [False, pytest.param(True, marks=NVME)], ids=["memory", "nvme"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_training_is_the_same_under_every_engine(
    ranks: "Launcher", world_size: int, needs_nvme: bool, tmp_path: Path
) -> None:
    """B014, B036, B040, B151: equal to one process in loss, gradient norm and weights; in bf16 to DDP in bf16."""
    chosen = [
        cell for cell in sample() if (cell.world_size, cell.variant.needs_nvme) == (world_size, needs_nvme)
    ]
    in_bf16 = {cell.training for cell in chosen if cell.training.precision == "bf16"}
    of_ddp = [Cell(variant=DDP, world_size=world_size, training=training) for training in in_bf16]
    chosen = of_ddp + [cell for cell in chosen if cell not in of_ddp]
    by_rank = ranks(train_few, world_size, chosen, str(tmp_path), seconds=240)
    runs = {cell: [of_rank[i] for of_rank in by_rank] for i, cell in enumerate(chosen)}
    expected = {cell: reference(cell.training) for cell in chosen}
    for cell in chosen:
        if cell.training in in_bf16 and cell not in of_ddp:
            expected[cell] = runs[replace(cell, variant=DDP)][0]
    rows = [judge(cell, runs[cell], expected[cell], against="its reference") for cell in chosen]
    assert [row for row in rows if not row.is_equal] == []


def test_the_sample_shows_every_pair_and_is_a_sample() -> None:
    every, chosen = list(cells()), sample()
    assert len(chosen) < len(every) / 5
    for first in range(5):
        for second in range(first):
            pairs = {(factors(cell)[first], factors(cell)[second]) for cell in every}
            assert {(factors(cell)[first], factors(cell)[second]) for cell in chosen} == pairs
