"""The order of samples, alone and together with the batch plan that cuts it over ranks."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.batch import plan_batch
from workers.data.order import sample_ids

SEED = 7


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def epoch(number: int, *, num_samples: int, seed: int = SEED) -> list[int]:
    indices = range(number * num_samples, (number + 1) * num_samples)
    return sample_ids(indices, num_samples=num_samples, seed=seed).tolist()


def ids_of_run(
    steps: range, *, world_size: int, global_sequences: int, num_samples: int, micro: int = 8
) -> list[list[int]]:
    """What each rank sees in `steps`, in its order."""
    plan = plan_batch(global_sequences=global_sequences, world_size=world_size, micro=micro)
    seen: list[list[int]] = [[] for _ in range(world_size)]
    for step in steps:
        for rank in range(world_size):
            for batch in plan.micro_batches(step=step, rank=rank):
                indices = range(batch.first, batch.first + batch.count)
                seen[rank] += sample_ids(indices, num_samples=num_samples, seed=SEED).tolist()
    return seen


def by_step(steps: range, *, world_size: int, **cut: int) -> list[list[int]]:
    """The ids of each step over all ranks, in rank order."""
    return [flat(ids_of_run(range(step, step + 1), world_size=world_size, **cut)) for step in steps]


@given(
    num_samples=st.integers(1, 3000),
    number=st.integers(0, 1_000_000),
    seed=st.integers(0, 2**70),
)
def test_each_epoch_has_each_sample_exactly_once(num_samples: int, number: int, seed: int) -> None:
    assert sorted(epoch(number, num_samples=num_samples, seed=seed)) == list(range(num_samples))


@given(num_samples=st.integers(1, 500), indices=st.lists(st.integers(0, 2**40), min_size=1, max_size=40))
def test_the_sample_of_an_index_does_not_depend_on_what_else_is_asked(
    num_samples: int, indices: list[int]
) -> None:
    together = sample_ids(indices, num_samples=num_samples, seed=SEED).tolist()
    alone = [int(sample_ids([index], num_samples=num_samples, seed=SEED)[0]) for index in indices]
    assert together == alone


def test_no_index_gives_no_id() -> None:
    assert sample_ids(range(0), num_samples=5, seed=0).tolist() == []


def test_the_order_stays_as_it_was_first_released() -> None:
    # A checkpoint holds only a position: other ids here mean that every running job sees samples twice after an update.
    assert sample_ids(range(12), num_samples=6, seed=0).tolist() == [4, 5, 2, 0, 1, 3, 5, 0, 3, 2, 4, 1]
    assert sample_ids(range(6), num_samples=1_000_003, seed=2**65 + 1).tolist() == [
        310278,
        10292,
        762060,
        566610,
        326891,
        780563,
    ]


def test_another_epoch_and_another_seed_have_another_order() -> None:
    orders = [
        epoch(0, num_samples=100),
        epoch(1, num_samples=100),
        epoch(2, num_samples=100),
        epoch(0, num_samples=100, seed=SEED + 1),
        epoch(0, num_samples=100, seed=SEED + 2**64),
        list(range(100)),
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


@pytest.mark.parametrize("num_samples", [2, 5, 10])
def test_every_sample_comes_first_about_equally_often(num_samples: int) -> None:
    first = [epoch(number, num_samples=num_samples)[0] for number in range(1000)]
    counts = np.bincount(first, minlength=num_samples)
    expected = 1000 / num_samples
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 28  # 9 degrees of freedom: one seed in a thousand is above


def test_neighbours_are_torn_apart() -> None:
    order = np.array(epoch(3, num_samples=10_000))
    positions = np.arange(10_000)
    assert abs(np.corrcoef(order, positions)[0, 1]) < 0.03
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.03
    assert (np.abs(np.diff(order)) == 1).sum() < 10


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_workers_share_an_epoch_without_overlap_and_leave_nothing(world_size: int) -> None:  # B028
    ranks = ids_of_run(range(6), world_size=world_size, global_sequences=4, num_samples=24)
    everything = flat(ranks)
    assert sorted(everything) == list(range(24))
    assert all(ranks)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ids_of_a_step_do_not_depend_on_the_world_size(world_size: int) -> None:
    cut = {"global_sequences": 12, "num_samples": 50}
    assert by_step(range(9), world_size=world_size, **cut) == by_step(range(9), world_size=1, **cut)


def test_fewer_rows_than_workers_are_all_trained_and_the_next_epoch_fills_the_step() -> None:  # B027
    ranks = ids_of_run(range(3), world_size=4, global_sequences=4, num_samples=3)
    assert [len(rank) for rank in ranks] == [3, 3, 3, 3]
    assert np.bincount(flat(ranks)).tolist() == [4, 4, 4]


def test_rows_that_do_not_divide_by_the_workers_are_not_cut_off() -> None:  # B033
    ranks = ids_of_run(range(5), world_size=4, global_sequences=4, num_samples=10)
    assert np.bincount(flat(ranks)).tolist() == [2] * 10


def test_growing_in_mid_epoch_goes_on_where_the_smaller_group_stopped() -> None:  # B007
    before = by_step(range(4), world_size=2, global_sequences=8, num_samples=80)
    after = by_step(range(4, 10), world_size=4, global_sequences=8, num_samples=80)
    old, new = set(flat(before)), set(flat(after))
    assert not old & new
    assert old | new == set(range(80))


@pytest.mark.parametrize(
    "interrupted_at", [12, 16, 20, 24]
)  # 8 steps an epoch: inside the second, at its end, ...
def test_a_resumed_run_sees_the_ids_of_an_uninterrupted_one(interrupted_at: int) -> None:  # B056
    cut = {"world_size": 2, "global_sequences": 8, "num_samples": 64}
    resumed = by_step(range(interrupted_at), **cut) + by_step(range(interrupted_at, 24), **cut)
    assert resumed == by_step(range(24), **cut)
    assert np.bincount(flat(resumed)).tolist() == [3] * 64


def test_epochs_after_a_resume_are_whole() -> None:  # B057
    rest = flat(by_step(range(11, 32), world_size=2, global_sequences=8, num_samples=64))
    in_epoch_1 = (16 - 11) * 8
    assert sorted(rest[in_epoch_1 : in_epoch_1 + 64]) == list(range(64))
    assert sorted(rest[in_epoch_1 + 64 :]) == list(range(64))


def test_three_restarts_in_one_epoch_with_accumulation_repeat_and_miss_nothing() -> None:  # B059
    cut = {"world_size": 2, "global_sequences": 16, "num_samples": 160, "micro": 2}
    seen: list[int] = []
    for start, end in [(0, 2), (2, 3), (3, 7), (7, 10)]:
        seen += flat(by_step(range(start, end), **cut))
    assert sorted(seen) == list(range(160))
