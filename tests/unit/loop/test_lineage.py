"""Going on from a checkpoint: refused where it would train other samples."""

import pytest

from workers.contract.batch import MicroBatch
from workers.contract.config import TrainingConfig
from workers.contract.manifest import ResumePoint
from workers.engines import StepOutput
from workers.errors import ConfigError
from workers.lineage import Lineage, beginning, check_continuation, fork

CONFIG = TrainingConfig.model_validate(
    {"model": {"kind": "llama"}, "data": {"kind": "text", "path": "here"}, "train": {"steps": 3, "seed": 4}}
)
START = beginning(CONFIG, data_digest="abc")


class OneRank:
    """A world of this process alone."""

    def gather(self, values: list[int]) -> list[list[int]]:
        return [list(values)]


def step(loss: float) -> StepOutput:
    return StepOutput(loss=loss, grad_norm=1.0, tokens=5, is_finite=True)


def cuts(*spans: tuple[int, int]) -> list[MicroBatch]:
    return [MicroBatch(first=first, count=end - first) for first, end in spans]


def test_a_lineage_goes_on_from_the_point_of_another_round() -> None:
    first = Lineage(START, global_sequences=32)
    first.add_step(cuts((0, 32)), step(3.0))
    second = Lineage(ResumePoint.from_json(first.gather(OneRank()).to_json()), global_sequences=32)
    second.add_step(cuts((32, 50), (50, 64)), step(2.0))
    second.add_step(cuts((60, 96)), step(1.0))
    point = second.gather(OneRank())
    assert (point.step, point.next_index, point.tokens_seen) == (3, 96, 15)
    result = second.result(CONFIG, checkpoint="last", seconds=1.0)
    assert (result.loss_first, result.loss_last) == (3.0, 1.0)
    assert (result.samples_repeated, result.samples_missing) == (4, 0)


def test_indices_that_no_rank_trained_are_missing() -> None:
    lineage = Lineage(START, global_sequences=32)
    lineage.add_step(cuts((0, 30)), step(1.0))
    lineage.gather(OneRank())
    assert lineage.result(CONFIG, checkpoint="last", seconds=1.0).samples_missing == 66


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data_digest": "xyz"}, "the data's digest was xyz in the checkpoint and is abc"),
        ({"seed": 5}, "train.seed was 5 in the checkpoint and is 4"),
        ({"next_index": 63}, "the next global index was 63 in the checkpoint and is 64"),
    ],
)
def test_a_point_of_other_samples_is_refused_with_both_values(change: dict[str, object], named: str) -> None:
    point = START.model_copy(update={"step": 2, "next_index": 64})
    check_continuation(point, start=START, global_sequences=32)
    with pytest.raises(ConfigError, match=named):
        check_continuation(point.model_copy(update=change), start=START, global_sequences=32)


class TestFork:
    """A job that begins with another one's checkpoint."""

    POINT = START.model_copy(
        update={"step": 2, "next_index": 64, "trained": ((0, 64),), "tokens_seen": 10, "loss_first": 3.0}
    )

    def test_with_the_same_samples_it_goes_on_among_them(self) -> None:
        start = START.model_copy(update={"config_digest": "of the fork"})
        point = fork(self.POINT, start=start, global_sequences=32)
        assert point == self.POINT.model_copy(update={"config_digest": "of the fork"})
        lineage = Lineage(point, global_sequences=32)
        lineage.add_step(cuts((64, 96)), step(1.0))
        lineage.gather(OneRank())
        result = lineage.result(CONFIG, checkpoint="last", seconds=1.0)
        assert (result.samples_repeated, result.samples_missing) == (0, 0)

    @pytest.mark.parametrize(
        ("change", "global_sequences"), [({"data_digest": "other"}, 32), ({"seed": 9}, 32), ({}, 16)]
    )
    def test_with_others_their_order_begins_anew_and_each_is_counted_once(
        self, change: dict[str, object], global_sequences: int
    ) -> None:
        start = START.model_copy(update=change)
        point = fork(self.POINT, start=start, global_sequences=global_sequences)
        assert (point.step, point.first_step, point.next_index, point.trained) == (2, 2, 0, ())
        assert point.tokens_seen == 10, "weights have seen them"
        check_continuation(point, start=start, global_sequences=global_sequences)
        lineage = Lineage(point, global_sequences=global_sequences)
        lineage.add_step(cuts((0, global_sequences)), step(1.0))
        after = lineage.gather(OneRank())
        check_continuation(after, start=start, global_sequences=global_sequences)
        config = CONFIG.model_copy(
            update={
                "train": CONFIG.train.model_copy(
                    update={
                        "batch": CONFIG.train.batch.model_copy(update={"global_sequences": global_sequences})
                    }
                )
            }
        )
        result = lineage.result(config, checkpoint="last", seconds=1.0)
        assert (result.samples_repeated, result.samples_missing) == (0, 0)
