"""The lineage of a run: the line of steps that survives failures, and what it has come to.

It lies in each checkpoint as a `ResumePoint`. A round goes on from one, counts what it trains, and proves at the end
that every sample was trained once.
"""

from collections.abc import Sequence

import xxhash

from workers.contract.batch import MicroBatch
from workers.contract.config import TrainingConfig
from workers.contract.events import JobResult
from workers.contract.manifest import ResumePoint
from workers.engines import Evaluation, StepOutput
from workers.errors import ConfigError
from workers.ledger import Ledger, Span, missing, record
from workers.world import World


def beginning(config: TrainingConfig, *, data_digest: str) -> ResumePoint:
    """Return the point before the first step."""
    return ResumePoint(
        step=0,
        next_index=0,
        seed=config.train.seed,
        tokens_seen=0,
        data_digest=data_digest,
        config_digest=xxhash.xxh3_128_hexdigest(config.model_dump_json().encode()),
    )


def check_continuation(point: ResumePoint, *, start: ResumePoint, global_sequences: int) -> None:
    """Refuse to go on from `point` where this job would train other samples than the one that saved it.

    `start` is this job's own beginning. Raises ConfigError with both values.
    """
    for what, saved, now in _differences(point, start, global_sequences):
        raise ConfigError(
            f"cannot go on from step {point.step}: {what} was {saved} in the checkpoint and is {now} in this job; "
            "use the data and settings that it was saved with, or start a new job"
        )


def fork(point: ResumePoint, *, start: ResumePoint, global_sequences: int) -> ResumePoint:
    """Return where a fork of `point` begins: at its step, with its weights and moments.

    Where it trains the same samples in the same order it goes on among them, so that each is trained once over both
    jobs. Else the order begins anew, with global index 0 in the first step of the fork, and so does the ledger.
    """
    own = {"config_digest": start.config_digest}
    if not _differences(point, start, global_sequences):
        return point.model_copy(update=own)
    anew = {
        "first_step": point.step,
        "next_index": 0,
        "seed": start.seed,
        "data_digest": start.data_digest,
        "trained": (),
        "repeated": 0,
        "validation_loss": None,  # of samples that this job does not hold out
    }
    return point.model_copy(update=own | anew)


def _differences(
    point: ResumePoint, start: ResumePoint, global_sequences: int
) -> list[tuple[str, object, object]]:
    """Return what decides on the order of samples and differs: what, as saved, as it would be now."""
    claims: tuple[tuple[str, object, object], ...] = (
        ("the data's digest", point.data_digest, start.data_digest),
        ("train.seed", point.seed, start.seed),
        ("the next global index", point.next_index, (point.step - point.first_step) * global_sequences),
    )
    return [claim for claim in claims if claim[1] != claim[2]]


def check_same_data(data_claim: str, world: World) -> None:
    """Refuse ranks whose data are not the same, as copies on several nodes can be; collective, one small all-gather.

    Raises ConfigError on every rank.
    """
    number = xxhash.xxh3_64_intdigest(data_claim.encode()) >> 1  # signed integers travel
    numbers = [row[0] for row in world.gather([number])]
    if odd := [rank for rank, other in enumerate(numbers) if other != numbers[0]]:
        raise ConfigError(
            f"the data of rank(s) {', '.join(map(str, odd))} are not those of rank 0: every node must see the same "
            f"files; this is rank {world.rank}, with {data_claim}"
        )


class Lineage:
    """Counts one round on top of the point it resumed from. Every rank keeps one; what it tells is the same on all."""

    def __init__(self, point: ResumePoint, *, global_sequences: int) -> None:
        self._point = point
        self._global_sequences = global_sequences
        self._spans: list[Span] = []  # trained by this rank since the ledger was last brought together

    def add_step(self, trained: Sequence[MicroBatch], output: StepOutput) -> None:
        """Count a finished step: what this rank trained, the loss and tokens of all."""
        point = self._point
        self._spans.extend((cut.first, cut.first + cut.count) for cut in trained)
        self._point = point.model_copy(
            update={
                "step": point.step + 1,
                "next_index": point.next_index + self._global_sequences,
                "tokens_seen": point.tokens_seen + output.tokens,
                "loss_first": output.loss if point.loss_first is None else point.loss_first,
                "loss_last": output.loss,
            }
        )

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Remember what held-out samples came to after the newest step."""
        self._point = self._point.model_copy(update={"validation_loss": evaluation.loss})

    @property
    def step(self) -> int:
        """Finished steps."""
        return self._point.step

    @property
    def validation_loss(self) -> float | None:
        """The newest evaluation's, on this lineage."""
        return self._point.validation_loss

    def gather(self, world: World) -> ResumePoint:
        """Bring all ranks' spans into the ledger and return the point to save; collective, one small all-gather."""
        flat = [index for span in self._spans for index in span]
        rows = world.gather(flat) if flat else []
        spans = [(row[i], row[i + 1]) for row in rows for i in range(0, len(row), 2)]
        ledger = record(Ledger(spans=self._point.trained, repeated=self._point.repeated), spans)
        self._point = self._point.model_copy(update={"trained": ledger.spans, "repeated": ledger.repeated})
        self._spans.clear()
        return self._point

    def result(
        self,
        config: TrainingConfig,
        *,
        checkpoint: str,
        seconds: float,
        tokens_per_second: float | None = None,
    ) -> JobResult:
        """Return what the finished lineage proves, and how fast its last round was. Call it after `gather`."""
        point = self._point
        ledger = Ledger(spans=point.trained, repeated=point.repeated)
        total = (config.train.steps - point.first_step) * config.train.batch.global_sequences
        assert not self._spans
        assert point.loss_first is not None
        assert point.loss_last is not None
        return JobResult(
            final_step=point.step,
            loss_first=point.loss_first,
            loss_last=point.loss_last,
            validation_loss=point.validation_loss,
            tokens=point.tokens_seen,
            samples_repeated=ledger.repeated,
            samples_missing=missing(ledger, total=total),
            replayed_steps=0,  # the driver knows what other rounds trained in vain
            checkpoint=checkpoint,
            seconds=seconds,
            tokens_per_second=tokens_per_second,
        )
