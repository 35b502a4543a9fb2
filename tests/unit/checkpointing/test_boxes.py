import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.checkpointing.boxes import split_box


@given(
    shape=st.lists(st.integers(1, 7), min_size=0, max_size=4),
    base=st.integers(0, 5),
    cap_bytes=st.integers(1, 200),
    item_bytes=st.sampled_from([1, 2, 4, 8]),
)
def test_the_parts_of_a_box_tile_it_and_respect_the_cap(
    shape: list[int], base: int, cap_bytes: int, item_bytes: int
) -> None:
    times_covered = np.zeros(shape, dtype=int)
    for offsets, sizes in split_box([base] * len(shape), shape, item_bytes=item_bytes, cap_bytes=cap_bytes):
        assert math.prod(sizes) * item_bytes <= max(cap_bytes, item_bytes)
        times_covered[tuple(slice(o - base, o - base + s) for o, s in zip(offsets, sizes, strict=True))] += 1
    assert (times_covered == 1).all()


def test_a_box_below_the_cap_stays_whole() -> None:
    assert list(split_box((2, 0), (3, 4), item_bytes=4, cap_bytes=48)) == [((2, 0), (3, 4))]
