"""Whether an optimizer step can be taken: one rule for every engine."""

import math

from workers.engines.engine import StepOutput
from workers.engines.loss_scaler import LossScaler


def judge(loss: float, norm: float, tokens: int, scaler: LossScaler | None) -> StepOutput:
    """Say whether the step can be taken, and move the loss scale. From values that are the same on all ranks."""
    is_finite = math.isfinite(loss)
    overflowed = is_finite and not math.isfinite(norm)
    if scaler is None or not is_finite:
        return StepOutput(loss=loss, grad_norm=norm, tokens=tokens, is_finite=is_finite and not overflowed)
    decision = scaler.after_backward(overflowed=overflowed)
    return StepOutput(
        loss=loss,
        grad_norm=norm if decision.gives_up or not overflowed else 0.0,
        tokens=tokens,
        is_finite=decision.gives_up is None,
        is_skipped=decision.is_skipped,
        reason=decision.gives_up,
    )
