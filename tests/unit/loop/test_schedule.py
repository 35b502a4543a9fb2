"""The learning rate of every step."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.config import Train
from workers.schedule import learning_rate


def make_train(steps: int, **schedule: object) -> Train:
    return Train.model_validate({"steps": steps, "optimizer": {"lr": 1.0}, "schedule": schedule})


def rates(train: Train) -> list[float]:
    return [learning_rate(step, train) for step in range(train.steps)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 0.868198, 0.55, 0.231802, 0.1]),
    ],
)
def test_rates_warm_up_and_end_at_the_floor(name: str, expected: list[float]) -> None:
    train = make_train(8, name=name, warmup_steps=3, min_ratio=0.1)
    assert rates(train) == pytest.approx(expected, abs=1e-6)


def test_a_run_shorter_than_its_warm_up_only_warms_up() -> None:
    assert rates(make_train(3, warmup_steps=9)) == pytest.approx([0.1, 0.2, 0.3])


def test_a_single_step_without_warm_up_has_the_full_rate() -> None:
    assert rates(make_train(1, warmup_steps=0)) == [1.0]


@given(
    steps=st.integers(1, 60),
    warmup=st.integers(0, 80),
    ratio=st.floats(0, 1),
    name=st.sampled_from(["cosine", "linear", "constant"]),
)
def test_rates_rise_to_the_peak_then_never_rise_again(
    steps: int, warmup: int, ratio: float, name: str
) -> None:
    found = rates(make_train(steps, name=name, warmup_steps=warmup, min_ratio=ratio))
    assert all(0 <= rate <= 1.0 for rate in found)
    assert all(earlier < later for earlier, later in pairwise(found[: warmup + 1]))
    assert all(earlier >= later - 1e-12 for earlier, later in pairwise(found[warmup:]))
