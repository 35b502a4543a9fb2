"""From step to sample: what happened since the last sample, about once a second, first step at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from workers.contract.events import Sample
from workers.contract.launch import RankOrder
from workers.engines import StepOutput
from workers.memory import resident_bytes

SAMPLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one step on this rank."""

    whole: float  # without the stall
    data: float
    stall: float


class Sampler:
    """Adds steps up until a sample is due. `clock` is monotonic seconds."""

    def __init__(self, order: RankOrder, *, start_step: int, clock: Callable[[], float]) -> None:
        self._order = order
        self._clock = clock
        self._train = order.request.config.train
        self._covered = start_step  # finished steps that samples tell of
        self._sent_at: float | None = None
        self._times: list[StepTimes] = []
        self._tokens = 0

    def add(self, output: StepOutput, times: StepTimes) -> None:
        """Count a finished step."""
        self._times.append(times)
        self._tokens += output.tokens

    @property
    def is_due(self) -> bool:
        """True after the first step of a round, after the last of the job, else about once in SAMPLE_SECONDS."""
        step = self._covered + len(self._times)
        if self._sent_at is None or step == self._train.steps:
            return True
        waited = self._clock() - self._sent_at
        return waited >= SAMPLE_SECONDS and step % self._train.log_every_steps == 0

    def take(self, output: StepOutput, *, learning_rate: float, memory_bytes: Mapping[str, int]) -> Sample:
        """Return the sample of all steps since the last one; `output` and `learning_rate` are the newest step's."""
        times, size = self._times, self._train.batch.global_sequences
        first, end = self._covered, self._covered + len(times)
        sample = Sample(
            rank=self._order.rank,
            step=end,
            attempt=self._order.round.attempt,
            round=self._order.round.round,
            at=datetime.now(UTC),
            loss=output.loss,
            learning_rate=learning_rate,
            grad_norm=output.grad_norm,
            tokens=self._tokens,
            steps=len(times),
            step_seconds=sum(t.whole for t in times) / len(times),
            data_seconds=sum(t.data for t in times) / len(times),
            checkpoint_stall_seconds=sum(t.stall for t in times),
            memory_bytes=memory_bytes,
            rss_bytes=resident_bytes(),
            first_index=first * size,
            end_index=end * size,
        )
        self._covered, self._times, self._tokens, self._sent_at = end, [], 0, self._clock()
        return sample
