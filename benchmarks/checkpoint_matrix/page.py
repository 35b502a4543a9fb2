"""`docs/checkpoints.md`, made of the rows alone. Pure."""

from collections.abc import Sequence

from benchmarks.checkpoint_matrix.rows import TOLERANCE, Results, Row
from benchmarks.equivalence.matrix import WORLD_SIZES, variants

HEAD = """# One checkpoint that every engine continues

Made by `make checkpoint-matrix`; do not edit. Every row: [results/checkpoints.json](../results/checkpoints.json), `matrix`.

A model with tied, unused, frozen, 0-dim and empty parameters, of a width that no world size above 1 divides, is trained
by one process and saved in mid-training. Then, for each engine, stage and offload at 1, 2, 3 and 4 workers:

- **content**: it loads that checkpoint and saves it at once. Weights, moments and counters by name, read back from disk, are the
  reference's, bit for bit: nothing of engine, stage or width is in what is stored;
- **loads**: it loads each of the {num_layouts} ways in which such checkpoints lie on disk, bit for bit;
- **loss**: it trains on. Largest relative difference of a loss to the reference that never stopped; at most {tolerance:.0e};
- **again**: it saves, goes on, and a new engine of the same kind goes on from that checkpoint, too: the same losses, bitwise.

**{num_right} of {num_rows} rows hold in all four.** {num_wrong}
"""


def render(results: Results) -> str:
    """Return the page."""
    wrong = [row for row in results.rows if not row.is_right]
    head = HEAD.format(
        num_layouts=max(row.num_layouts for row in results.rows),
        tolerance=TOLERANCE,
        num_right=len(results.rows) - len(wrong),
        num_rows=len(results.rows),
        num_wrong="The others are in bold." if wrong else "None is left out.",
    )
    software = ", ".join(f"{name} {version}" for name, version in results.software.items())
    machine = ", ".join(f"{value} {name}" for name, value in results.machine.items())
    made = (
        f"## How to make it again\n\n`{results.command}` at commit `{results.commit}`, seed {results.seed}: "
        f"{results.seconds / 60:.0f} minutes on {machine}; {software}.\n"
    )
    failures = [f"- `{row.engine}`, {row.world_size} workers: {row.error}" for row in wrong if row.error]
    return "\n".join([head, _table(results.rows), *([*failures, ""] if failures else []), made])


def _table(rows: Sequence[Row]) -> str:
    lines = ["| engine | " + " | ".join(f"{n} worker{'s' if n > 1 else ''}" for n in WORLD_SIZES) + " |"]
    lines.append("|---" * (1 + len(WORLD_SIZES)) + "|")
    by_cell = {(row.engine, row.world_size): row for row in rows}
    for variant in variants():
        cells = [by_cell.get((variant.name, world_size)) for world_size in WORLD_SIZES]
        if any(cells):
            lines.append(f"| `{variant.name}` | " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if row.error:
        return "**failed**"
    content = "same" if row.is_same_content else "other content"
    again = "bitwise" if row.is_bitwise else "not bitwise"
    text = f"{content}, {row.num_loaded}/{row.num_layouts}, {row.loss:.0e}, {again}"
    return text if row.is_right else f"**{text}**"
