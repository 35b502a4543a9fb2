"""The ledger of a lineage: which global indices were trained, and how many of them more than once.

It is filled from what ranks really put through a step, travels in each checkpoint, and is what the job's promise
"each sample once" is checked against.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int]  # global indices [first, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Indices trained at least once, as few spans as there are, sorted; and how often one was trained again."""

    spans: tuple[Span, ...] = ()
    repeated: int = 0


def record(ledger: Ledger, trained: Iterable[Span]) -> Ledger:
    """Return the ledger after `trained`, in any order; empty spans are allowed."""
    merged: list[Span] = []
    repeated = ledger.repeated
    for first, end in sorted(span for span in (*ledger.spans, *trained) if span[0] < span[1]):
        if not merged or first > merged[-1][1]:
            merged.append((first, end))
            continue
        start, furthest = merged[-1]
        repeated += min(end, furthest) - first
        merged[-1] = (start, max(end, furthest))
    return Ledger(spans=tuple(merged), repeated=repeated)


def missing(ledger: Ledger, *, total: int) -> int:
    """Return how many of the indices [0, total) were never trained."""
    return total - sum(max(0, min(end, total) - first) for first, end in ledger.spans)
