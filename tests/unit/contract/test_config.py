"""Defaults and rules of the job file's training part."""

import pytest
from pydantic import ValidationError

from workers.contract.config import TrainingConfig, Width

BASE = {"model": {"kind": "llama"}, "data": {"kind": "text", "path": "python-stdlib"}}


def config(**parts) -> TrainingConfig:
    return TrainingConfig.model_validate({**BASE, **parts})


def test_everything_but_model_and_data_has_a_default():
    assert config().train.steps > 0
    with pytest.raises(ValidationError, match="data"):
        TrainingConfig.model_validate({"model": BASE["model"]})


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        (4, (4,)),
        ([2, 4], (4, 3, 2)),
        ({"min": 2, "max": 8, "step": 2}, (8, 6, 4, 2)),
        ({"min": 1, "max": 8, "step": 3}, (7, 4, 1)),
    ],
)
def test_num_workers_reads_a_number_a_pair_and_a_range(text, widths):
    parsed = config(scaling={"num_workers": text}, train={"batch": {"global_sequences": 8}})
    assert parsed.scaling.num_workers.widths() == widths


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ({"scaling": {"num_workers": [4, 2]}}, "min 4 is greater than max 2"),
        ({"scaling": {"num_workers": 0}}, "greater than 0"),
        ({"scaling": {"num_workers": -1}}, "greater than 0"),
        ({"scaling": {"num_workers": True}}, "num_workers"),
        (
            {"scaling": {"num_workers": 4}, "train": {"batch": {"global_sequences": 2}}},
            "global_sequences 2 is below",
        ),
        ({"engine": {"kind": "fsdp", "zero_stage": 1}}, "no stage 1"),
        ({"engine": {"kind": "fsdp", "zero_stage": 0}}, "kind: ddp"),
        ({"engine": {"kind": "ddp", "zero_stage": 3}}, "needs `kind: fsdp`"),
        ({"engine": {"kind": "deepspeed", "zero_stage": 0}}, "use `kind: ddp`"),
        (
            {"engine": {"shard_group_size": 2}, "scaling": {"num_workers": [2, 4]}},
            "shard_group_size 2 does not divide scaling.num_workers 3",
        ),
        ({"train": {"steps": 1.5}}, "steps"),
        ({"train": {"optimizer": {"lr": -1}}}, "greater than 0"),
        ({"train": {"optimizer": {"lr": float("nan")}}}, "finite"),
        ({"train": {"optimizer": {"betas": [0.9, 1.0]}}}, "below 1"),
        ({"model": {"kind": "task", "target": "a:b"}}, "come together"),
        ({"nodes": 3}, "Extra inputs"),
    ],
)
def test_what_cannot_be_meant_is_refused(parts, rule):
    with pytest.raises(ValidationError, match=rule):
        config(**parts)


def test_the_stage_in_force_follows_the_kind():
    assert config(engine={"kind": "ddp"}).engine.stage == 0
    assert config().engine.stage == 3


def test_widths_are_widest_first():
    assert Width(min=1, max=3).widths() == (3, 2, 1)
