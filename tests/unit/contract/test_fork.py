"""What a fork may change, and what not."""

from functools import reduce
from typing import Any

import pytest

from workers.contract.config import TrainingConfig
from workers.contract.fork import MAY_CHANGE, changes, refused, split_reference

BASE: dict[str, Any] = {
    "model": {"kind": "llama", "size": "nano"},
    "data": {"kind": "text", "path": "a"},
    "engine": {"kind": "fsdp"},
}


def _config(**edits: Any) -> TrainingConfig:
    """BASE with `train__optimizer__lr=...` set."""
    content: dict[str, Any] = {key: dict(section) for key, section in BASE.items()}
    for path, value in edits.items():
        *parents, key = path.split("__")
        reduce(lambda section, name: section.setdefault(name, {}), parents, content)[key] = value
    return TrainingConfig.model_validate(content)


@pytest.mark.parametrize(
    "edits",
    [
        {"train__optimizer__lr": 1e-5, "train__schedule__name": "wsd", "train__steps": 900},
        {"data": {"kind": "parquet", "path": "b"}, "train__seed": 7},
        {"engine": {"kind": "deepspeed", "zero_stage": 1}, "scaling__num_workers": 3},
        {"checkpoint__keep": 9, "export": "safetensors", "runtime__env": {"A": "1"}},
        {"train__precision__params": "fp32", "train__grad_clip": None, "train__batch__global_sequences": 64},
    ],
)
def test_what_is_listed_may_change(edits: dict[str, Any]) -> None:
    assert len(changes(_config(), _config(**edits))) >= len(edits)
    assert refused(_config(), _config(**edits)) == ()


@pytest.mark.parametrize(
    ("edits", "path", "old", "new"),
    [
        ({"model__size": "tiny"}, "model.size", "nano", "tiny"),
        ({"model__tie_embeddings": False}, "model.tie_embeddings", True, False),
        ({"train__optimizer__name": "sgd"}, "train.optimizer.name", "adamw", "sgd"),
        ({"train__precision__params": "fp16"}, "train.precision.params", "bf16", "fp16"),
        ({"data__tokenizer": "bpe"}, "data.tokenizer.kind", "bytes", "bpe"),
    ],
)
def test_the_rest_is_refused_by_name_with_both_values(
    edits: dict[str, Any], path: str, old: Any, new: Any
) -> None:
    (change,) = (one for one in refused(_config(), _config(**edits)) if one.path == path)
    assert (change.old, change.new) == (old, new)


def test_a_model_of_another_kind_is_refused_key_by_key() -> None:
    other = _config(model={"kind": "hf", "config": {"model_type": "gpt2"}, "weights": "random"})
    paths = {change.path for change in refused(_config(), other)}
    assert {"model.kind", "model.size", "model.config.model_type"} <= paths
    assert all(path.startswith("model.") for path in paths)


def test_every_key_of_the_list_is_one_of_a_job_file() -> None:
    schema = TrainingConfig.model_json_schema()
    known = {name: set(part.get("properties", {})) for name, part in schema["$defs"].items()}
    sections = {"train": "Train", "optimizer": "Optimizer", "batch": "Batch", "model": "HfModel"}
    for path in MAY_CHANGE:
        *parents, key = path.split(".")
        owner = known[sections[parents[-1]]] if parents else set(schema["properties"])
        assert key in owner, path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", ("train", None)),
        ("train@300", ("train", "300")),
        ("/runs/a@b/job-1", ("/runs/a@b/job-1", None)),
        ("/runs/a@b/job-1@7", ("/runs/a@b/job-1", "7")),
        ("s3://bucket/p/job@12", ("s3://bucket/p/job", "12")),
        (
            "job@step-00000300.g1.a0.r2.0badcafe",
            ("job", "step-00000300.g1.a0.r2.0badcafe"),
        ),
        ("@300", ("@300", None)),
    ],
)
def test_a_reference_is_a_run_and_a_step(text: str, expected: tuple[str, str | None]) -> None:
    assert split_reference(text) == expected
