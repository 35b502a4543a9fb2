"""The learning rate as a pure function of the step: nothing to save, nothing to advance, nothing to restore wrongly."""

import math
from typing import assert_never

from workers.contract.config import Train


def learning_rate(step: int, train: Train) -> float:
    """Return the rate of the 0-based `step`: linear warm-up to `lr`, then decay that ends at `lr * min_ratio` in the last step.

    Step warmup_steps is the first at full rate. Depends on neither micro-batches nor world size.
    """
    peak, schedule = train.optimizer.lr, train.schedule
    if step < schedule.warmup_steps:
        return peak * (step + 1) / (schedule.warmup_steps + 1)
    match schedule.name:
        case "constant":
            return peak
        case "linear":
            left = 1.0 - _decayed(step, train)
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * _decayed(step, train)))
        case "wsd":
            left = min(1.0, (train.steps - 1 - step) / _decay_steps(train))
        case _:
            assert_never(schedule.name)
    return peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * left)


def _decay_steps(train: Train) -> int:
    """Return how many of the last steps of `wsd` lie below the full rate; never those of the warm-up."""
    asked = train.schedule.decay_steps or max(1, train.steps // 10)
    return max(1, min(asked, train.steps - 1 - train.schedule.warmup_steps))


def _decayed(step: int, train: Train) -> float:
    """Return which part of the decay is behind: 0 in the first step after warm-up, 1 in the last step of the run."""
    first, last = train.schedule.warmup_steps, train.steps - 1
    return min(1.0, (step - first) / (last - first)) if last > first else 0.0
