"""From steps to samples: what happened since the last sample, about once a second, the first step at once.

A job that takes seconds has a curve all the same: its steps are cut into so many parts, and each part has a sample.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from workers.contract.events import Sample
from workers.contract.launch import RankOrder
from workers.engines import StepOutput
from workers.memory import resident_bytes
from workers.schedule import learning_rate

SAMPLE_SECONDS: Final = 1.0
CURVE_PARTS: Final = (
    32  # of a job's steps; the fewest samples that a curve is drawn from, where there are as many steps
)


class Sampler:
    """Times steps and adds them up until a sample is due. `clock` gives monotonic seconds.

    `first_step` is the step that trains global index 0.
    """

    def __init__(
        self, order: RankOrder, *, start_step: int, first_step: int = 0, clock: Callable[[], float]
    ) -> None:
        self._order = order
        self._first_step = first_step
        self._train = order.request.config.train
        self._clock = clock
        self._output: StepOutput | None = None  # the newest step's
        self._sampled = self._finished = start_step  # steps that samples tell of; steps that were finished
        self._sampled_at: float | None = None
        self._step_at = self._data_at = 0.0
        self._warm_at: float | None = None  # when the round's first step ended
        self._ended_at = 0.0
        self._warm_tokens = 0  # of the steps after it
        self._forget()

    def begin_step(self) -> None:
        """Call it before a step's data are read."""
        self._step_at = self._clock()

    def data_are_here(self) -> None:
        """Call it when they are."""
        self._data_at = self._clock()

    def end_step(self, output: StepOutput) -> None:
        """Call it after the update."""
        self._ended_at = self._clock()
        if self._warm_at is None:
            self._warm_at = self._ended_at
        else:
            self._warm_tokens += output.tokens
        self._seconds += self._ended_at - self._step_at
        self._data_seconds += self._data_at - self._step_at
        self._tokens += output.tokens
        self._output = output
        self._finished += 1

    def add_stall(self, seconds: float) -> None:
        """Count a standstill for a checkpoint; it is no part of the step's duration."""
        self._stall_seconds += seconds

    @property
    def is_due(self) -> bool:
        """True after the first step of a round, after the last of the job, else about once in SAMPLE_SECONDS.

        And at the end of each of the CURVE_PARTS, which are the same steps for every rank and every round.
        """
        if self._sampled_at is None or self._finished == self._train.steps:
            return True
        is_late = self._clock() - self._sampled_at >= SAMPLE_SECONDS
        ends_a_part = self._finished % -(-self._train.steps // CURVE_PARTS) == 0
        return (is_late or ends_a_part) and self._finished % self._train.log_every_steps == 0

    @property
    def tokens_per_second(self) -> float | None:
        """Global tokens in a second of this round, what lies between its steps counted in; None of a single step.

        The round's first step is left out: it loads, compiles and allocates.
        """
        seconds = 0.0 if self._warm_at is None else self._ended_at - self._warm_at
        return self._warm_tokens / seconds if seconds > 0 else None

    def take(self, memory_bytes: Mapping[str, int], validation_loss: float | None) -> Sample:
        """Return the sample of all steps since the last one, at least one; loss and norm are the newest step's."""
        steps, size = self._finished - self._sampled, self._train.batch.global_sequences
        assert self._output is not None
        assert steps > 0
        sample = Sample(
            rank=self._order.rank,
            step=self._finished,
            attempt=self._order.round.attempt,
            round=self._order.round.round,
            at=datetime.now(UTC),
            loss=self._output.loss,
            learning_rate=learning_rate(self._finished - 1, self._train),
            grad_norm=self._output.grad_norm,
            validation_loss=validation_loss,
            tokens=self._tokens,
            steps=steps,
            step_seconds=self._seconds / steps,
            data_seconds=self._data_seconds / steps,
            checkpoint_stall_seconds=self._stall_seconds,
            memory_bytes=memory_bytes,
            rss_bytes=resident_bytes(),
            first_index=(self._sampled - self._first_step) * size,
            end_index=(self._finished - self._first_step) * size,
        )
        self._sampled, self._sampled_at = self._finished, self._clock()
        self._forget()
        return sample

    def _forget(self) -> None:
        self._seconds = self._data_seconds = self._stall_seconds = 0.0
        self._tokens = 0
