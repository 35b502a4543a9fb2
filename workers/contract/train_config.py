"""`train` of a job file: how long, on what batch, by which rule, in which precision."""

from typing import Literal, Self

from pydantic import model_validator

from workers.contract.base import Strict
from workers.contract.numbers import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Ratio


class Batch(Strict):
    """The global batch, in sequences: it never changes, whatever the world size; accumulation is derived."""

    global_sequences: PositiveInt = 32
    micro: PositiveInt | Literal["auto"] = "auto"  # sequences per rank and forward; auto: at most 8


class Optimizer(Strict):
    """AdamW or SGD (momentum in `betas[0]`)."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 3e-4
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[NonNegativeFloat, NonNegativeFloat] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    @model_validator(mode="after")
    def _betas_below_one(self) -> Self:
        if max(self.betas) >= 1:
            raise ValueError(f"betas must be below 1, not {list(self.betas)}")
        return self


class Schedule(Strict):
    """Learning rate over steps: linear warm-up, then cosine or linear decay to `min_ratio`, or constant.

    `wsd` (warm-up, stable, decay) stays at the full rate until the last `decay_steps`, then falls linearly.
    """

    name: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    warmup_steps: NonNegativeInt = 20
    decay_steps: PositiveInt | None = None  # of `wsd`; None: a tenth of the steps
    min_ratio: Ratio = 0.1


class LossScale(Strict):
    """Dynamic loss scale of fp16: halved where a gradient overflows, doubled after a row of steps that did not."""

    initial: PositiveFloat = 65536.0
    growth_steps: PositiveInt = 1000
    minimum: PositiveFloat = 1.0
    max_skipped: PositiveInt = 30  # steps in a row that may be skipped; more ends the job


class Precision(Strict):
    """Dtypes of compute (`params`), of the optimizer's copy (`master`) and of gradient reduction."""

    params: Literal["fp32", "bf16", "fp16"] = "bf16"
    master: Literal["fp32"] = "fp32"
    reduce: Literal["fp32", "bf16", "fp16"] = "fp32"
    loss_scale: LossScale = LossScale()  # of fp16 alone


class Train(Strict):
    """How long, on what batch, by which rule."""

    steps: PositiveInt = 200
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    precision: Precision = Precision()
    grad_clip: PositiveFloat | None = 1.0
    seed: NonNegativeInt = 0
    log_every_steps: PositiveInt = 1
