"""What is held out of training, and how a mixture deals global indices to its sources."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.data import DataError
from workers.data.order import ROW_SLOTS, SampleOrder, apportion, sample_ids, sample_order

SEED = 7
WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


def held_out(order: SampleOrder) -> list[int]:
    return order.validation_ids(range(order.num_validation)).tolist()


def test_nothing_held_out_leaves_the_order_as_it_was() -> None:
    order = sample_order([50], seed=SEED)
    assert order.ids(range(120)).tolist() == sample_ids(range(120), num_samples=50, seed=SEED).tolist()
    assert order.num_validation == 0
    assert held_out(order) == []
    assert order.claim("digest") == "digest"


@given(
    sizes=st.lists(st.integers(2, 300), min_size=1, max_size=4),
    ratio=st.floats(0.001, 0.9),
    seed=st.integers(0, 2**70),
)
def test_training_and_validation_share_no_sample_and_leave_none(
    sizes: list[int], ratio: float, seed: int
) -> None:
    order = sample_order(sizes, seed=seed, weights=sizes, validation_ratio=ratio)
    validation = held_out(order)
    assert len(set(validation)) == order.num_validation == len(validation)
    trained = set(order.ids(range(ROW_SLOTS)).tolist())
    assert not trained & set(validation)
    assert trained | set(validation) == set(range(sum(sizes)))


@given(num_samples=st.integers(2, 400), ratio=st.floats(0.01, 0.9), number=st.integers(0, 10**6))
def test_each_epoch_trains_each_sample_that_is_not_held_out_once(
    num_samples: int, ratio: float, number: int
) -> None:
    order = sample_order([num_samples], seed=SEED, validation_ratio=ratio)
    num_training = num_samples - order.num_validation
    epoch = order.ids(range(number * num_training, (number + 1) * num_training)).tolist()
    assert sorted([*epoch, *held_out(order)]) == list(range(num_samples))


def test_jobs_of_other_seeds_are_measured_on_the_same_samples() -> None:
    orders = [sample_order([1000], seed=seed, validation_ratio=0.1) for seed in (0, 1, 2**64)]
    assert len({tuple(held_out(order)) for order in orders}) == 1
    assert len({tuple(order.ids(range(900)).tolist()) for order in orders}) == 3


@pytest.mark.parametrize(("ratio", "num_held_out"), [(0.1, 10), (0.001, 1), (0.999, 99), (0.25, 25)])
def test_the_ratio_is_rounded_and_leaves_one_sample_on_either_side(ratio: float, num_held_out: int) -> None:
    assert sample_order([100], seed=SEED, validation_ratio=ratio).num_validation == num_held_out


def test_one_sample_cannot_be_parted() -> None:
    with pytest.raises(DataError, match=r"validation\.ratio: 0\.5 of 1 sample\(s\) cannot be held out"):
        sample_order([1], seed=SEED, validation_ratio=0.5)


def test_the_first_held_out_samples_are_drawn_from_everywhere() -> None:
    order = sample_order([10_000, 10_000], seed=SEED, weights=[1, 1], validation_ratio=0.2)
    first = order.validation_ids(range(400))
    by_quarter = np.bincount(first // 5000, minlength=4)
    assert by_quarter.min() > 60
    assert first.tolist() == held_out(order)[:400]


def test_the_held_out_samples_stay_as_they_were_first_released() -> None:
    # A checkpoint holds only a position and this choice's size: other ids would be trained and measured on after an update.
    order = sample_order([20], seed=0, validation_ratio=0.25)
    assert held_out(order) == [14, 11, 16, 7, 3]
    assert order.ids(range(15)).tolist() == [10, 15, 4, 2, 6, 19, 5, 13, 9, 8, 12, 0, 1, 17, 18]


@given(weights=WEIGHTS)
def test_shares_follow_the_weights_to_a_slot_and_nobody_gets_none(weights: list[float]) -> None:
    shares = apportion(weights)
    assert min(shares) >= 1
    if len(weights) == 1:
        return
    for share, weight in zip(shares, weights, strict=True):
        exact = weight / sum(weights) * ROW_SLOTS
        assert abs(share - exact) < 1 or (share == 1 and exact < 1)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 1], (25_200, 25_200)),
        ([1, 2], (16_800, 33_600)),
        ([0.7, 0.2, 0.1], (35_280, 10_080, 5_040)),
        ([1, 1, 1, 1, 1, 1, 1], (7_200,) * 7),
        ([1, 1e-9], (50_400, 1)),
    ],
)
def test_weights_that_people_write_are_exact(weights: list[float], shares: tuple[int, ...]) -> None:
    assert apportion(weights) == shares


def owners_of(order: SampleOrder, indices: range) -> np.ndarray:
    ends = list(itertools.accumulate(source.num_samples for source in order.sources))
    return np.searchsorted(ends, order.ids(indices), side="right")


@given(weights=WEIGHTS, end=st.integers(1, 2000), start=st.integers(0, 10**9))
def test_every_stretch_of_a_mixture_holds_the_weights(weights: list[float], end: int, start: int) -> None:
    order = sample_order([100] * len(weights), seed=SEED, weights=weights)
    owners = owners_of(order, range(start, start + end))
    shares = np.array([source.share for source in order.sources])
    expected = shares / shares.sum() * end
    counts = np.bincount(owners, minlength=len(weights))
    assert np.abs(counts - expected).max() <= len(weights)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    weights=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    seed=st.integers(0, 2**65),
)
def test_each_sample_of_a_source_comes_once_a_pass_whatever_the_weights(
    sizes: list[int], weights: list[float], seed: int
) -> None:
    order = sample_order(sizes, seed=seed, weights=weights[: len(sizes)])
    ids = order.ids(range(ROW_SLOTS - 1000, ROW_SLOTS + 3000))
    seen_before = order.ids(range(ROW_SLOTS - 1000))
    first_id = 0
    for size in sizes:
        mine = [
            int(sample) - first_id for sample in (*seen_before, *ids) if first_id <= sample < first_id + size
        ]
        whole = len(mine) // size
        for number in range(max(0, whole - 3), whole):
            assert sorted(mine[number * size : (number + 1) * size]) == list(range(size))
        first_id += size


@given(indices=st.lists(st.integers(0, 2**45), min_size=1, max_size=30))
def test_the_sample_of_an_index_of_a_mixture_does_not_depend_on_what_else_is_asked(
    indices: list[int],
) -> None:
    """B007, B056, B059: so a run resumed at any index, on any number of ranks, goes on with what would have come."""
    order = sample_order([7, 300, 41], seed=SEED, weights=[1, 5, 2.5], validation_ratio=0.2)
    assert order.ids(indices).tolist() == [int(order.ids([index])[0]) for index in indices]


def test_a_mixture_of_one_source_is_that_source() -> None:
    alone = sample_order([30], seed=SEED, validation_ratio=0.1)
    mixed = sample_order([30], seed=SEED, weights=[0.3], validation_ratio=0.1)
    assert mixed == alone


def test_sources_of_one_size_are_not_read_in_one_order() -> None:
    order = sample_order([100, 100], seed=SEED, weights=[1, 1])
    ids = order.ids(range(200))
    first, second = ids[ids < 100].tolist(), (ids[ids >= 100] - 100).tolist()
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


def test_the_claim_names_what_changes_the_samples() -> None:
    claims = {
        sample_order([10, 10], seed=SEED, weights=weights, validation_ratio=ratio).claim("digest")
        for weights, ratio in [([1, 1], 0.0), ([1, 2], 0.0), ([1, 1], 0.2), ([1, 1], 0.3)]
    }
    assert len(claims) == 4
