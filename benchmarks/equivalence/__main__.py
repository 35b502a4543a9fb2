"""Runs the matrix, tells each row as it comes, and writes results and page. Exit code 0 only if every row is equal."""

import argparse
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from typing import Final

import torch

from benchmarks.commit import ROOT, commit
from benchmarks.equivalence.compare import TOLERANCES
from benchmarks.equivalence.gang import Gang, GangError
from benchmarks.equivalence.matrix import DDP, SEED, STEPS, Cell, Training, cells
from benchmarks.equivalence.model import make_task
from benchmarks.equivalence.page import render
from benchmarks.equivalence.rank import train_all
from benchmarks.equivalence.reference import Run, train_reference
from benchmarks.equivalence.rows import Results, Row, failed, judge, write_results
from workers.contract.config import TrainingConfig

RESULTS: Final = ROOT / "results" / "equivalence.json"
PAGE: Final = ROOT / "docs" / "equivalence.md"
CELL_SECONDS: Final = 90.0  # of one training, on a slow and busy machine


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equivalence", description=__doc__)
    parser.add_argument("--only", default="", help="engines whose name this pattern is in; writes no file")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    started = time.monotonic()
    chosen = [cell for cell in cells() if re.search(only, cell.variant.name) or cell.variant == DDP]
    with closing(Gang()) as gang, tempfile.TemporaryDirectory(prefix="equivalence-nvme-") as nvme_path:
        rows = list(_run_all(gang, chosen, nvme_path))
    bad = sum(not row.is_equal for row in rows)
    print(f"{len(rows) - bad} of {len(rows)} rows are equal")
    if not only:
        results = _results(rows, seconds=time.monotonic() - started)
        write_results(results, RESULTS)
        PAGE.write_text(render(results))
        print(f"written: {RESULTS.relative_to(ROOT)}, {PAGE.relative_to(ROOT)}")
    return 1 if bad else 0


def _run_all(gang: Gang, chosen: Sequence[Cell], nvme_path: str) -> Iterator[Row]:
    """Run cells of one engine and world size in one group of ranks, since starting ranks costs more than training."""
    references: dict[str, Run] = {}
    runs_of_ddp: dict[tuple[int, str], Run] = {}
    for (world_size, variant), group in groupby(chosen, key=lambda cell: (cell.world_size, cell.variant)):
        for cell, runs in _run_group(gang, list(group), nvme_path):
            training = cell.training
            if training.name not in references:
                references[training.name] = _reference(training)
            expected: Run | None = references[training.name]
            against = "one process"
            if training.precision != "fp32" and variant != DDP:
                expected, against = runs_of_ddp.get((world_size, training.name)), "ddp"
            if isinstance(runs, str):
                row = failed(cell, runs, against=against)
            else:
                row = judge(cell, runs, expected, against=against)
                if variant == DDP:
                    runs_of_ddp[world_size, training.name] = runs[0]
            _tell(row)
            yield row


def _run_group(gang: Gang, group: Sequence[Cell], nvme_path: str) -> Iterator[tuple[Cell, list[Run] | str]]:
    """Return for each cell what its ranks came to, or the error. If one fails, each is run again by itself."""
    world_size = group[0].world_size
    limit = CELL_SECONDS * len(group)
    try:
        by_rank = gang.run(train_all, world_size, group, nvme_path=nvme_path, seconds=limit)
    except GangError as error:
        if len(group) == 1:
            yield group[0], str(error)
            return
        for cell in group:
            yield from _run_group(gang, [cell], nvme_path)
        return
    for position, cell in enumerate(group):
        yield cell, [runs[position] for runs in by_rank]


def _reference(training: Training) -> Run:
    """Train in this process. The engine that the configuration names is not asked."""
    config = TrainingConfig.model_validate(training.job(DDP, nvme_path=""))
    return train_reference(make_task(training), config)


def _tell(row: Row) -> None:
    verdict = "equal" if row.is_equal else "NOT EQUAL"
    found = row.error or f"loss {row.loss:.1e} norm {row.norm:.1e} weights {row.weights:.1e}"
    print(f"{row.engine:42} {row.world_size} {row.training:20} {verdict}: {found}", flush=True)


def _results(rows: Sequence[Row], *, seconds: float) -> Results:
    return Results(
        command="make equivalence",
        commit=commit(RESULTS, PAGE),
        seed=SEED,
        steps=STEPS,
        seconds=round(seconds, 1),
        machine={"CPUs": len(os.sched_getaffinity(0)), "(architecture)": platform.machine()},
        software={"Python": platform.python_version()}
        | {name: version(name) for name in ("torch", "deepspeed")},
        tolerances={name: asdict(tolerance) for name, tolerance in TOLERANCES.items()},
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
