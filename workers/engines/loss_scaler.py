"""The loss scale of one engine: `loss_scale` decides, two small tensors hold it, so that checkpoints carry it."""

import torch

from workers.contract.config import Precision
from workers.engines.loss_scale import ScaleDecision, ScaleState, after_backward


class LossScaler:
    """Where the scale stands. The tensors lie on the CPU, so that nothing waits for a device to read them."""

    def __init__(self, precision: Precision) -> None:
        self._rule = precision.loss_scale
        self._scale = torch.tensor(self._rule.initial, dtype=torch.float32)
        self._good_steps = torch.tensor(0, dtype=torch.int64)
        self._skipped_in_row = 0

    @property
    def scale(self) -> float:
        """What the loss is multiplied by."""
        return float(self._scale)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors by canonical name; what a load writes into them is in force at once."""
        return {"scaler.scale": self._scale, "scaler.good_steps": self._good_steps}

    def after_backward(self, *, overflowed: bool) -> ScaleDecision:
        """Decide on the step and move the scale. Every rank calls it with the same argument; no collective."""
        now = ScaleState(
            scale=self.scale, good_steps=int(self._good_steps), skipped_in_row=self._skipped_in_row
        )
        decision = after_backward(now, self._rule, overflowed=overflowed)
        self._scale.fill_(decision.state.scale)
        self._good_steps.fill_(decision.state.good_steps)
        self._skipped_in_row = decision.state.skipped_in_row
        return decision
