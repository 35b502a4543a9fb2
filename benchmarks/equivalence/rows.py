"""What is measured of each cell, as rows, and the file they are kept in."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.equivalence.compare import TOLERANCES, difference
from benchmarks.equivalence.matrix import Cell
from benchmarks.equivalence.reference import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell: how far it is from what it has to equal, or why nobody knows."""

    engine: str
    world_size: int
    training: str
    precision: str
    against: str  # what it is compared with
    is_equal: bool
    loss: float | None = None  # largest relative differences; see `compare`
    norm: float | None = None
    weights: float | None = None
    parameter: str | None = None  # with the largest difference
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All rows of a run, and what one needs to make them again."""

    command: str
    commit: str  # with "+" if the tree had changes
    seed: int
    steps: int
    seconds: float
    machine: Mapping[str, Any]
    software: Mapping[str, str]
    tolerances: Mapping[str, Mapping[str, float]]
    rows: Sequence[Row]


def judge(cell: Cell, runs: Sequence[Run], expected: Run | None, *, against: str) -> Row:
    """Return the row of a cell whose ranks came to `runs`: the worst of them counts."""
    if expected is None:
        return failed(cell, f"{against} failed, so there is nothing to compare with", against=against)
    try:
        found = [difference(run, expected) for run in runs]
    except ValueError as error:
        return failed(cell, str(error), against=against)
    if not all(math.isfinite(value) for one in found for value in (one.loss, one.norm, one.weights)):
        return failed(cell, "loss, norm or weights are not finite", against=against)
    tolerance = TOLERANCES[cell.training.precision]
    worst = max(found, key=lambda one: one.weights)
    return _row(
        cell,
        against=against,
        is_equal=all(one.is_within(tolerance) for one in found),
        loss=max(one.loss for one in found),
        norm=max(one.norm for one in found),
        weights=worst.weights,
        parameter=worst.parameter,
    )


def failed(cell: Cell, error: str, *, against: str) -> Row:
    """Return the row of a cell that came to nothing."""
    return _row(cell, against=against, is_equal=False, error=error)


def _row(cell: Cell, **found: Any) -> Row:
    return Row(
        engine=cell.variant.name,
        world_size=cell.world_size,
        training=cell.training.name,
        precision=cell.training.precision,
        **found,
    )


def write_results(results: Results, path: Path) -> None:
    """Write JSON with one line a row, so that two runs can be compared by `diff`."""
    head = {key: value for key, value in asdict(results).items() if key != "rows"}
    lines = [json.dumps({k: v for k, v in asdict(row).items() if v is not None}) for row in results.rows]
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n")


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote."""
    tree = json.loads(path.read_text())
    return Results(**(tree | {"rows": [Row(**row) for row in tree["rows"]]}))
