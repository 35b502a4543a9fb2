"""A pairwise sample: few rows of a matrix that show every pair of values of two factors which the matrix has."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

Row = TypeVar("Row", bound=Hashable)
Pair = tuple[tuple[int, Hashable], tuple[int, Hashable]]


def pairwise(rows: Sequence[Row], factors: Callable[[Row], Sequence[Hashable]]) -> list[Row]:
    """Return rows that cover what all do, by pairs of `factors`: greedily the row with most that is new, the first of equals."""
    pairs = {row: _pairs(factors(row)) for row in rows}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return chosen


def _pairs(values: Iterable[Hashable]) -> set[Pair]:
    return set(combinations(enumerate(values), 2))
