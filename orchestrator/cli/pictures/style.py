"""The few shapes and colours that every picture shares."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

STATE_STYLE: Final = {
    "queued": "dim",
    "starting": "cyan",
    "running": "blue",
    "recovering": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
}
BAR: Final = "━"
SPARKS: Final = "▁▂▃▄▅▆▇█"
Justify = Literal["left", "right"]


def columns(*headings: str, right: Iterable[str] = (), wrap: Iterable[str] = ()) -> Table:
    """Make a table without lines. Columns named in `wrap` fold; the others keep to one line."""
    right, wrap = set(right), set(wrap)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            no_wrap=heading not in wrap,
            overflow="fold" if heading in wrap else "ellipsis",
        )
    return table


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Make the two columns of a page: what, and its value."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def heading(title: str, aside: str = "") -> Text:
    """Make the line above a part of a page, an empty line before it."""
    return Text.assemble("\n", (title, "bold"), ("  " + aside if aside else "", "dim"))


def state_text(state: str) -> Text:
    """Write a job's state in its colour."""
    return Text(state, style=STATE_STYLE.get(state, ""))


def bar(share: float, width: int, style: str = "blue") -> Text:
    """Draw `share` (0..1) of `width` cells; the rest stays as a faint track."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble((BAR * filled, style), (BAR * (width - filled), "bright_black"))


def sparkline(values: Iterable[float], width: int) -> str:
    """Draw a curve in `width` characters: the mean of each slice, from the lowest to the highest value."""
    points = [value for value in values if value == value and abs(value) != float("inf")]
    if len(points) < 2:
        return ""
    width = min(width, len(points))
    edges = [index * len(points) // width for index in range(width + 1)]
    means = [sum(points[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(SPARKS[round((mean - low) / span * (len(SPARKS) - 1))] for mean in means)
