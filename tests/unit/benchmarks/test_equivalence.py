"""The harness of `make equivalence` would see what it is there to see, and its page says what its rows say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.equivalence.compare import TOLERANCES, difference
from benchmarks.equivalence.matrix import (
    DDP,
    EVERYTHING,
    TRAININGS,
    WORLD_SIZES,
    Cell,
    Training,
    Variant,
    cells,
    variants,
)
from benchmarks.equivalence.model import make_task
from benchmarks.equivalence.page import render
from benchmarks.equivalence.reference import Run, train_reference
from benchmarks.equivalence.rows import Results, Row, failed, judge, read_results, write_results
from workers.contract.config import TrainingConfig

TOP = Path(__file__).parents[3]
CELL = Cell(variant=DDP, world_size=1, training=TRAININGS[0])
RUN = Run(losses=[2.0, 1.0], norms=[0.5, 0.25], weights={"a": torch.ones(4), "b": torch.ones(2, 2)})


def reference(training: Training) -> Run:
    config = TrainingConfig.model_validate(training.job(DDP, nvme_path=""))
    return train_reference(make_task(training), config)


def results(*rows: Row) -> Results:
    return Results(
        command="make equivalence",
        commit="0123456789ab",
        seed=0,
        steps=20,
        seconds=60.0,
        machine={"CPUs": 2},
        software={"torch": "2.13"},
        tolerances={
            "fp32": {"loss": 1e-5, "norm": 1e-5, "weights": 1e-5},
            "bf16": {"loss": 1e-2, "norm": 1e-1, "weights": 1e-2},
        },
        rows=rows,
    )


@pytest.mark.parametrize(
    "changed",
    [
        replace(RUN, losses=[2.0, 1.0 + 2e-5]),
        replace(RUN, norms=[0.5 + 1e-5, 0.25]),
        replace(RUN, weights=RUN.weights | {"a": torch.tensor([1.0, 1.0, 1.0, 1.0001])}),
        replace(RUN, losses=[2.0, float("nan")]),
        replace(RUN, weights=RUN.weights | {"b": torch.full((2, 2), torch.nan)}),
        replace(RUN, weights=RUN.weights | {"b": torch.ones(4)}),
        replace(RUN, weights={"a": torch.ones(4)}),
    ],
)
def test_a_run_that_differs_on_any_rank_is_no_equal_row(changed: Run) -> None:
    assert judge(CELL, [RUN, RUN], RUN, against="one process").is_equal
    assert not judge(CELL, [RUN, changed], RUN, against="one process").is_equal
    assert not judge(CELL, [RUN], None, against="ddp").is_equal


@pytest.mark.parametrize("training", [t for t in TRAININGS if t.precision == "fp32"], ids=lambda t: t.name)
def test_a_training_notices_what_it_is_there_for(training: Training) -> None:
    """Another batch, or a clip that is off by a thousandth, is more than the tolerance: no row is equal by being blind."""
    tolerance = TOLERANCES["fp32"]
    run = reference(training)
    assert difference(reference(training), run).is_within(tolerance)
    assert run.losses[-1] < run.losses[0]
    others = [replace(training, global_sequences=training.global_sequences - 1)]
    if training.grad_clip is not None:
        assert min(run.norms) < training.grad_clip < max(run.norms)
        others.append(replace(training, grad_clip=training.grad_clip * 1.001))
    for other in others:
        assert not difference(reference(other), run).is_within(tolerance)


def test_oddities_are_in_the_model() -> None:
    module = make_task(replace(EVERYTHING, is_deferred=False)).build()
    parameters = dict(module.named_parameters())
    assert module.head.weight is module.embedding.weight
    assert not any(p.requires_grad for name, p in parameters.items() if name.startswith("blocks.1."))
    assert {parameters["blocks.2.gain"].ndim, parameters["blocks.2.nothing"].numel()} == {0}
    run = reference(EVERYTHING)
    spare = make_task(EVERYTHING)
    spare.build()
    assert run.weights["blocks.2.spare.weight"].equal(spare.initial_weight("blocks.2.spare.weight"))
    assert all(25 % world_size for world_size in WORLD_SIZES if world_size > 1)


def test_every_engine_stage_and_offload_of_a_job_file_is_in_the_matrix_at_every_world_size() -> None:
    names = {variant.name for variant in variants()}
    assert {"ddp", "fsdp-2", "fsdp-3", "fsdp-3 hybrid", "fsdp-3 optimizer:cpu params:cpu"} <= names
    assert {f"deepspeed-{stage}" for stage in range(4)} <= names
    assert {"deepspeed-1 optimizer:cpu", "deepspeed-2 optimizer:cpu", "deepspeed-3 hpZ"} <= names
    assert {
        f"deepspeed-3 optimizer:{a} params:{b}" for a in ("cpu", "nvme") for b in ("cpu", "nvme")
    } <= names
    for variant in variants():
        worlds = {cell.world_size for cell in cells() if cell.variant == variant}
        assert worlds == ({4} if variant.in_groups else set(WORLD_SIZES)), variant.name
    assert not any(
        cell.training.precision == "bf16"
        for cell in cells()
        if cell.variant == Variant(kind="deepspeed", stage=0)
    )


def test_the_page_shows_a_failing_row_and_hides_no_other(tmp_path: Path) -> None:
    good = judge(CELL, [RUN], replace(RUN, losses=[2.0, 1.000001]), against="one process")
    uneven = Cell(variant=variants()[1], world_size=3, training=TRAININGS[1])
    far = judge(uneven, [RUN], replace(RUN, losses=[2.0, 1.1]), against="one process")
    dead = failed(replace(uneven, world_size=4), "rank 2 died", against="one process")
    page = render(results(good, far, dead))
    assert "**1 of 3 rows are equal**" in page
    assert "| `ddp` | 1e-06 / 0e+00 | - | - | - |" in page
    assert "| `fsdp-2` | - | - | **9e-02 / 0e+00** | **1 of 1 failed** |" in page
    assert "- `fsdp-2`, 4 workers, accumulation: rank 2 died" in page
    write_results(results(good, far, dead), tmp_path / "rows.json")
    assert read_results(tmp_path / "rows.json") == replace(results(), rows=[good, far, dead])


def test_the_committed_page_is_what_the_committed_rows_say() -> None:
    committed = read_results(TOP / "results" / "equivalence.json")
    assert (TOP / "docs" / "equivalence.md").read_text() == render(committed)
    assert len(committed.rows) == len(list(cells()))
