"""What crosses a process boundary survives the way there and back."""

import math
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from workers.contract import metric_names
from workers.contract.config import TrainingConfig
from workers.contract.events import Sample
from workers.contract.launch import LaunchRequest
from workers.contract.manifest import CheckpointId
from workers.contract.rank_messages import Measured, parse_rank_message
from workers.contract.restart import Counters


def sample(**values) -> Sample:
    return Sample(
        **{
            "rank": 0, "step": 1, "attempt": 0, "round": 0, "at": datetime(2026, 1, 1, tzinfo=UTC), "loss": 1.0,
            "learning_rate": 0.1, "grad_norm": 1.0, "tokens": 1, "steps": 1, "step_seconds": 0.1, **values,
        }
    )  # fmt: skip


def test_a_launch_request_reads_back_as_it_was():
    request = LaunchRequest(
        job_id="j1", name="n", generation=1, world_size=2, gpus_per_worker=0, run_dir="/runs/j1", version="0",
        config=TrainingConfig.model_validate({"model": {"kind": "llama"}, "data": {"kind": "text", "path": "p"}}),
        counters=Counters(charged=2),
    )  # fmt: skip
    assert LaunchRequest.from_json(request.to_json()) == request


def test_a_rank_message_knows_its_own_type_and_carries_nan():
    line = Measured(sample=sample(loss=math.nan, grad_norm=math.inf)).to_json().encode()
    back = parse_rank_message(line)
    assert isinstance(back, Measured)
    assert math.isnan(back.sample.loss)
    assert math.isinf(back.sample.grad_norm)


def test_what_no_rank_sends_is_refused():
    with pytest.raises(ValidationError):
        parse_rank_message(b'{"type": "exec", "code": "..."}')


def test_a_checkpoint_name_reads_back_and_sorts_by_number():
    ids = [
        CheckpointId(step=s, generation=1, attempt=0, round=r, nonce="0a1b2c3d")
        for s, r in ((9900, 0), (10_000, 0), (9, 2), (9, 10))
    ]
    assert [CheckpointId.parse(str(i)) for i in ids] == ids
    assert [(i.step, i.round) for i in sorted(ids, key=lambda i: i.age_key)] == [
        (9, 2),
        (9, 10),
        (9900, 0),
        (10_000, 0),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "step-1",
        "step-00000001.g1.a0.r0",
        "step-00000001.g1.a0.r0.0a1b2c3d.tmp",
        "../step-00000001.g1.a0.r0.0a1b2c3d",
        "",
    ],
)
def test_a_directory_that_is_not_ours_is_no_checkpoint(name):
    assert CheckpointId.parse(name) is None


def test_metric_names_are_unique_and_follow_the_rules():
    names = [metric.name for metric in metric_names.ALL]
    assert len(names) == len(set(names)) > 0
    for metric in metric_names.ALL:
        assert metric.name.startswith("shardyard_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not {"job", "pid", "step", "path"} & set(metric.labels)
