"""Bytes by category, a column a rank."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from orchestrator.cli.pictures.style import BAR, columns
from orchestrator.cli.wording import bytes_text
from workers.contract.events import Sample

ORDER: Final = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "buffers",
    "communication",
    "other",
)
RANKS_SHOWN: Final = 4  # above it: lowest, mean and highest
BAR_WIDTH: Final = 16


def memory_table(samples: Sequence[Sample]) -> Table | None:
    """Draw the newest sample of each rank; None where nothing was measured. Categories not measured are left out."""
    ranks = sorted((s for s in samples if s.memory_bytes), key=lambda s: s.rank)
    if not ranks:
        return None
    names = _categories(ranks)
    headings, rows = _cells(ranks, names)
    table = columns("", *headings, "SHARE", right=headings)
    total = sum(rows[name][0] for name in names) or 1
    for name in names:
        share = rows[name][0] / total
        table.add_row(
            name.replace("_", " "),
            *(bytes_text(value) for value in rows[name]),
            Text(BAR * max(round(share * BAR_WIDTH), share > 0), style="blue"),
        )
    sums = [sum(rows[name][column] for name in names) for column in range(len(headings))]
    table.add_row(Text("sum", style="bold"), *(Text(bytes_text(value), style="bold") for value in sums), "")
    if any(s.rss_bytes for s in ranks):
        resident = _spread([s.rss_bytes for s in ranks])
        table.add_row(
            Text("process, resident", style="dim"),
            *(Text(bytes_text(value), style="dim") for value in resident),
            "",
        )
    return table


def _categories(ranks: Sequence[Sample]) -> list[str]:
    """Known categories in the order of the design, then whatever else a newer rank measures."""
    found = {name for sample in ranks for name in sample.memory_bytes}
    return [name for name in ORDER if name in found] + sorted(found.difference(ORDER))


def _cells(ranks: Sequence[Sample], names: Sequence[str]) -> tuple[list[str], dict[str, list[int]]]:
    headings = (
        [f"RANK {s.rank}" for s in ranks] if len(ranks) <= RANKS_SHOWN else ["LOWEST", "MEAN", "HIGHEST"]
    )
    return headings, {name: _spread([s.memory_bytes.get(name, 0) for s in ranks]) for name in names}


def _spread(values: Sequence[int]) -> list[int]:
    if len(values) <= RANKS_SHOWN:
        return list(values)
    return [min(values), sum(values) // len(values), max(values)]
