"""A DeepSpeed configuration that people have is understood, held against the job file, and never silently ignored."""

from typing import Any

import pytest
from pydantic import ValidationError

from workers.contract.config import TrainingConfig


def make_config(raw: dict[str, Any], **engine: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "llama"},
            "data": {"kind": "text", "path": "x"},
            "train": {"batch": {"global_sequences": 64}, "optimizer": {"lr": 1e-4}},
            "engine": {"kind": "deepspeed", "raw": raw, **engine},
        }
    )


def test_what_is_auto_or_says_the_same_is_taken_and_tuning_is_passed_on() -> None:
    raw = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": "auto"}},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "reduce_bucket_size": 5e8,
            "stage3_prefetch_bucket_size": "auto",
            "offload_param": {"device": "none"},
        },
    }
    reading = make_config(raw).read_raw()
    assert reading.tuning == {"overlap_comm": True, "reduce_bucket_size": 5e8}
    assert [warning.split(" ")[0] for warning in reading.warnings] == [
        "engine.raw.gradient_accumulation_steps",
        "engine.raw.optimizer.type",
    ]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (
            {"train_batch_size": 32},
            ("engine.raw.train_batch_size is 32", "train.batch.global_sequences is 64"),
        ),
        ({"zero_optimization": {"stage": 2}}, ("zero_optimization.stage is 2", "engine.zero_stage is 3")),
        (
            {"optimizer": {"params": {"lr": 1e-3}}},
            ("optimizer.params.lr is 0.001", "train.optimizer.lr is 0.0001"),
        ),
        ({"fp16": {"enabled": True}}, ("fp16.enabled is True", "train.precision.params is 'bf16'")),
        (
            {"zero_optimization": {"cpu_offload": True}},
            ("offload_optimizer.device is 'cpu'", "engine.offload.optimizer"),
        ),
        ({"zero_optimisation": {"stage": 3}}, ("zero_optimisation is not a key that is known",)),
        (
            {"zero_optimization": {"reduce_bucket": 1}},
            ("did you mean `zero_optimization.reduce_bucket_size`?",),
        ),
        ({"train_micro_batch_size_per_gpu": 4}, ("train.batch.micro is 'auto'",)),
    ],
)
def test_a_contradiction_names_both_places_and_an_unknown_key_its_neighbour(
    raw: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ValidationError) as refused:
        make_config(raw)
    for part in named:
        assert part in str(refused.value)


def test_an_old_spelling_is_understood_with_a_warning() -> None:
    reading = make_config(
        {"bfloat16": {"enabled": True}, "zero_optimization": {"stage": 2, "cpu_offload": True}},
        zero_stage=2,
        offload={"optimizer": "cpu"},
    ).read_raw()
    assert reading.problems == ()
    assert any(
        "bfloat16.enabled is an old spelling of bf16.enabled" in warning for warning in reading.warnings
    )
    assert any("cpu_offload is an old spelling" in warning for warning in reading.warnings)


def test_raw_is_for_deepspeed_alone() -> None:
    with pytest.raises(ValidationError, match="use `kind: deepspeed`"):
        make_config({}, kind="fsdp")
