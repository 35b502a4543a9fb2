"""What was trained, counted against a plain multiset."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workers.ledger import Ledger, missing, record

SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def test_spans_that_tile_become_one() -> None:
    ledger = record(record(Ledger(), [(5, 10), (0, 5)]), [(15, 20), (10, 15)])
    assert ledger == Ledger(spans=((0, 20),), repeated=0)
    assert missing(ledger, total=20) == 0


def test_a_gap_is_missing_and_an_overlap_is_repeated() -> None:
    ledger = record(Ledger(), [(0, 6), (4, 8), (9, 10)])
    assert ledger == Ledger(spans=((0, 8), (9, 10)), repeated=2)
    assert missing(ledger, total=12) == 3


def test_what_lies_beyond_the_total_covers_nothing() -> None:
    assert missing(record(Ledger(), [(0, 2), (8, 20)]), total=10) == 6


@given(st.lists(SPANS, max_size=4), st.integers(0, 40))
def test_a_ledger_counts_as_a_multiset_does(portions: list[list[tuple[int, int]]], total: int) -> None:
    ledger, counts = Ledger(), Counter[int]()
    for portion in portions:
        ledger = record(ledger, portion)
        counts.update(index for first, end in portion for index in range(first, end))
    assert ledger.repeated == sum(counts.values()) - len(counts)
    assert missing(ledger, total=total) == sum(1 for index in range(total) if not counts[index])
    assert all(one[1] < other[0] for one, other in zip(ledger.spans, ledger.spans[1:], strict=False))
