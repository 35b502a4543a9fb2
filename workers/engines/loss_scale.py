"""Dynamic loss scale of fp16 (Micikevicius et al. 2018, section 3.2): pure. Every rank decides the same from the same norm.

Gradients below 6e-8 vanish in fp16 and above 65504 overflow. So the loss is multiplied before backward and gradients
are divided before the update; where they overflowed the step is left out and the scale halved.
"""

from dataclasses import dataclass, replace

from workers.contract.config import LossScale


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """Where the scale stands. `scale` and `good_steps` are part of a checkpoint; a new round starts a new row."""

    scale: float
    good_steps: int = 0  # since the scale last changed
    skipped_in_row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """What follows a backward."""

    state: ScaleState  # for the next step
    is_skipped: bool = False
    gives_up: str | None = None  # why there is no use in going on


def after_backward(state: ScaleState, rule: LossScale, *, overflowed: bool) -> ScaleDecision:
    """Decide whether the step is taken, and the scale of the next."""
    if not overflowed:
        good_steps = state.good_steps + 1
        if good_steps >= rule.growth_steps:
            return ScaleDecision(state=ScaleState(scale=state.scale * 2.0))
        return ScaleDecision(state=replace(state, good_steps=good_steps, skipped_in_row=0))
    skipped = state.skipped_in_row + 1
    lower = ScaleState(scale=max(state.scale / 2.0, rule.minimum), skipped_in_row=skipped)
    if skipped > rule.max_skipped:
        return ScaleDecision(
            state=lower,
            is_skipped=True,
            gives_up=(
                f"{skipped} steps in a row overflowed in fp16, the last one with a loss scale of {state.scale:g} "
                f"(minimum {rule.minimum:g}): the gradients themselves are too large; use `precision.params: bf16` or a "
                "lower learning rate"
            ),
        )
    return ScaleDecision(state=lower, is_skipped=True)
