"""The loss scale of fp16, decision by decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.config import LossScale, Precision
from workers.engines.loss_scale import ScaleState, after_backward
from workers.engines.loss_scaler import LossScaler

RULE = LossScale(initial=16.0, growth_steps=3, minimum=2.0, max_skipped=2)


@pytest.mark.parametrize(
    ("state", "overflowed", "after", "is_skipped"),
    [
        (ScaleState(scale=16.0), False, ScaleState(scale=16.0, good_steps=1), False),
        (ScaleState(scale=16.0, good_steps=2), False, ScaleState(scale=32.0), False),
        (ScaleState(scale=16.0, good_steps=2), True, ScaleState(scale=8.0, skipped_in_row=1), True),
        (ScaleState(scale=2.0, skipped_in_row=1), True, ScaleState(scale=2.0, skipped_in_row=2), True),
        (ScaleState(scale=2.0, skipped_in_row=2), False, ScaleState(scale=2.0, good_steps=1), False),
    ],
)
def test_the_scale_halves_at_an_overflow_and_doubles_after_a_row_without(
    state: ScaleState, overflowed: bool, after: ScaleState, is_skipped: bool
) -> None:
    decision = after_backward(state, RULE, overflowed=overflowed)
    assert (decision.state, decision.is_skipped, decision.gives_up) == (after, is_skipped, None)


def test_endless_overflow_ends_with_its_reason_and_a_remedy() -> None:
    """B045."""
    scaler = LossScaler(Precision(params="fp16", loss_scale=RULE))
    decisions = [scaler.after_backward(overflowed=True) for _ in range(3)]
    assert [decision.gives_up is None for decision in decisions] == [True, True, False]
    reason = decisions[-1].gives_up
    assert reason is not None
    assert reason.startswith("3 steps in a row overflowed in fp16, the last one with a loss scale of 4")
    assert "use `precision.params: bf16`" in reason


@given(st.lists(st.booleans(), max_size=80))
def test_the_scale_stays_a_power_of_two_and_never_falls_below_its_minimum(overflows: list[bool]) -> None:
    scaler = LossScaler(Precision(params="fp16", loss_scale=RULE.model_copy(update={"max_skipped": 99})))
    for overflowed in overflows:
        scaler.after_backward(overflowed=overflowed)
        assert scaler.scale >= RULE.minimum
        assert scaler.scale.hex().startswith("0x1.0000000000000p")
