"""What `make checkpoint-matrix` tells: a row that does not hold is in bold, and the page is what the rows say."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.checkpoint_matrix.page import render
from benchmarks.checkpoint_matrix.rank import TRAINING
from benchmarks.checkpoint_matrix.rows import (
    Results,
    Row,
    difference,
    read_results,
    write_results,
    write_section,
)
from benchmarks.equivalence.matrix import cells

TOP = Path(__file__).parents[3]
GOOD = Row(
    engine="fsdp-2",
    world_size=2,
    layout="abc",
    is_same_content=True,
    num_loaded=6,
    num_layouts=6,
    loss=1e-7,
    is_bitwise=True,
)


def results(*rows: Row) -> Results:
    return Results(
        command="make checkpoint-matrix", commit="c", seed=0, seconds=60.0, machine={}, software={}, rows=rows
    )


@pytest.mark.parametrize(
    "change",
    [
        {"is_same_content": False},
        {"num_loaded": 5},
        {"num_loaded": 0, "num_layouts": 0},
        {"loss": 2e-5},
        {"loss": float("nan")},
        {"is_bitwise": False},
        {"error": "rank 1 died"},
    ],
)
def test_a_row_holds_only_if_all_of_it_does_and_shows_what_does_not(change: dict[str, object]) -> None:
    bad = replace(GOOD, world_size=4, **change)
    assert (GOOD.is_right, bad.is_right) == (True, False)
    page = render(results(GOOD, bad))
    assert "**1 of 2 rows hold in all four.**" in page
    [line] = [line for line in page.splitlines() if line.startswith("| `fsdp-2`")]
    assert line.count("**") == 2
    assert ("rank 1 died" in page) == ("error" in change)


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "results" / "checkpoints.json"
    write_section(path, "stall", {"ratio": 1.25})
    write_results(results(GOOD), path)
    write_results(results(GOOD, GOOD), path)
    assert read_results(path).rows == [GOOD, GOOD]
    assert '"ratio": 1.25' in path.read_text()


def test_the_largest_difference_counts() -> None:
    assert difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)


def test_the_committed_page_is_what_the_committed_rows_say() -> None:
    committed = read_results(TOP / "results" / "checkpoints.json")
    assert (TOP / "docs" / "checkpoints.md").read_text() == render(committed)
    assert len(committed.rows) == len([cell for cell in cells() if cell.training == TRAINING])
