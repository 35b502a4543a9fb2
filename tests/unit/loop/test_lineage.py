"""Going on from a checkpoint: refused where it would train other samples."""

import pytest

from workers.contract.batch import MicroBatch
from workers.contract.config import TrainingConfig
from workers.contract.manifest import ResumePoint
from workers.engines import StepOutput
from workers.errors import ConfigError
from workers.lineage import Lineage, beginning, check_continuation

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
