"""Runs the matrix, tells each row as it comes, and writes results and page. Exit code 0 only if every row holds."""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from benchmarks.checkpoint_matrix.canonical import digest, layout_of, read_whole
from benchmarks.checkpoint_matrix.page import render
from benchmarks.checkpoint_matrix.rank import STEPS, TRAINING, Visit, load_all, make_reference, visit
from benchmarks.checkpoint_matrix.rows import Results, Row, difference, read_results, write_results
from benchmarks.commit import ROOT, commit
from benchmarks.equivalence.gang import Gang, GangError
from benchmarks.equivalence.matrix import DDP, SEED, Cell, cells
from workers.checkpointing.catalog import read_manifest
from workers.contract.manifest import Manifest

RESULTS: Final = ROOT / "results" / "checkpoints.json"
PAGE: Final = ROOT / "docs" / "checkpoints.md"
SAVED_AT: Final = 8  # of STEPS
SECONDS: Final = 180.0  # of one engine at one width, on a slow and busy machine

Place = tuple[str, str]  # run directory, checkpoint


def main() -> int:
    """Return the exit code."""
    torch.set_num_threads(1)
    started = time.monotonic()
    with closing(Gang()) as gang, tempfile.TemporaryDirectory(prefix="checkpoints-") as home:
        rows = list(_run(gang, Path(home)))
    right = sum(row.is_right for row in rows)
    print(f"{right} of {len(rows)} rows hold")
    results = Results(
        command="make checkpoint-matrix",
        commit=commit(RESULTS, PAGE),
        seed=SEED,
        seconds=round(time.monotonic() - started, 1),
        machine={"CPUs": len(os.sched_getaffinity(0)), "(architecture)": platform.machine()},
        software={"Python": platform.python_version()} | {n: version(n) for n in ("torch", "deepspeed")},
        rows=rows,
    )
    write_results(results, RESULTS)
    PAGE.write_text(render(read_results(RESULTS)))
    return 0 if right == len(rows) else 1


def _run(gang: Gang, home: Path) -> Iterator[Row]:
    nvme_path = str(home / "nvme")
    Path(nvme_path).mkdir()
    first = str(home / "reference")
    [(name, losses)] = gang.run(make_reference, 1, DDP, first, steps=SAVED_AT, seconds=SECONDS)
    reference = (first, name)
    expected = read_whole(*reference)
    layouts: dict[str, Place] = {layout_of(_manifest(reference)): reference}
    rows: list[tuple[Cell, Row]] = []
    for number, cell in enumerate(_cells()):
        run_dir = str(home / f"run-{number}")
        row = _visit(gang, cell, nvme_path, reference, run_dir, losses, digest(expected), layouts)
        rows.append((cell, row))
    print(f"{len(layouts)} distinct layouts", flush=True)
    for cell, row in rows:
        if row.error is None:
            row = _load(gang, cell, row, nvme_path, layouts, expected)
        print(
            f"{row.engine:42} {row.world_size} {'holds' if row.is_right else f'DOES NOT HOLD: {row}'}",
            flush=True,
        )
        yield row


def _cells() -> list[Cell]:
    return [cell for cell in cells() if cell.training == TRAINING]


def _visit(
    gang: Gang,
    cell: Cell,
    nvme_path: str,
    reference: Place,
    run_dir: str,
    losses: list[float],
    content: str,
    layouts: dict[str, Place],
) -> Row:
    row = Row(engine=cell.variant.name, world_size=cell.world_size)
    try:
        visits: list[Visit] = gang.run(
            visit,
            cell.world_size,
            cell.variant,
            nvme_path,
            reference,
            run_dir,
            steps=SAVED_AT,
            seconds=SECONDS,
        )
    except GangError as error:
        return replace(row, error=str(error))
    saved = (run_dir, visits[0].saved)
    layout = layout_of(_manifest(saved))
    layouts.setdefault(layout, saved)
    return replace(
        row,
        layout=layout,
        is_same_content=digest(read_whole(*saved)) == content,
        loss=max(difference(one.losses, losses) for one in visits),
        is_bitwise=all(one.straight == one.resumed for one in visits),
    )


def _load(
    gang: Gang,
    cell: Cell,
    row: Row,
    nvme_path: str,
    layouts: Mapping[str, Place],
    expected: Mapping[str, torch.Tensor],
) -> Row:
    try:
        wrong: list[list[str]] = gang.run(
            load_all, cell.world_size, cell.variant, nvme_path, layouts, expected, seconds=SECONDS
        )
    except GangError as error:
        return replace(row, num_layouts=len(layouts), error=str(error))
    failed = {label for labels in wrong for label in labels}
    return replace(row, num_layouts=len(layouts), num_loaded=len(layouts) - len(failed))


def _manifest(place: Place) -> Manifest:
    manifest = read_manifest(*place)
    assert isinstance(manifest, Manifest)
    assert STEPS > SAVED_AT
    return manifest


if __name__ == "__main__":
    sys.exit(main())
