"""Models of transformers behind the `Task` protocol."""

from pathlib import Path
from typing import Any

import pytest
import torch

from workers.contract.config import TrainingConfig
from workers.engines.weights import fill
from workers.errors import ConfigError
from workers.models import load_task
from workers.models.task import DeferredTask

pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


def task_of(**model: Any) -> DeferredTask:
    config = TrainingConfig.model_validate(
        {"model": {"kind": "hf", **model}, "data": {"kind": "text", "path": "python-stdlib", "seq_len": 16}}
    )
    task = load_task(config)
    assert isinstance(task, DeferredTask)
    return task


def filled(task: DeferredTask) -> torch.nn.Module:
    module = task.build()
    for name, parameter in list(module.named_parameters()):
        fill(parameter, task.initial_weight(name).float())
    return module.eval()


def loss_of(task: DeferredTask, module: torch.nn.Module, tokens: torch.Tensor, **more: torch.Tensor) -> float:
    labels = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], -100)], dim=1)
    for cut in more.get("cuts", torch.tensor([])).tolist():
        labels[:, int(cut) - 1] = -100
    batch = {"tokens": tokens, "labels": labels} | {k: v for k, v in more.items() if k != "cuts"}
    return task.loss_sum(module, batch).item()


@pytest.mark.parametrize("kind", SIZES)
def test_documents_of_one_window_are_trained_as_if_each_were_alone(kind: str) -> None:
    task = task_of(config={"model_type": kind, "vocab_size": 260, **SIZES[kind]}, weights="random")
    module = filled(task)
    first, second = torch.arange(10)[None], torch.arange(40, 52)[None]
    documents = torch.tensor([[0] * 10 + [1] * 12])
    together = loss_of(
        task, module, torch.cat([first, second], dim=1), documents=documents, cuts=torch.tensor([10])
    )
    apart = loss_of(task, module, first) + loss_of(task, module, second)
    assert together == pytest.approx(apart, rel=1e-5)


def test_blocks_are_the_decoder_layers() -> None:
    task = task_of(config={"model_type": "gpt2", "vocab_size": 260, **SIZES["gpt2"]}, weights="random")
    module = task.build()
    assert list(task.blocks(module)) == list(module.transformer.h)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"path": "./nowhere"}, "holds no config.json"),
        ({"config": {"hidden_size": 8}, "weights": "random"}, "model_type is missing"),
        ({"config": {"model_type": "lama"}, "weights": "random"}, "lama"),
    ],
)
def test_a_model_that_is_not_there_is_refused_by_name(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_of(**model)


def test_a_checkpoint_of_another_model_is_refused_by_the_missing_name(tmp_path: Path) -> None:
    import transformers

    small = transformers.AutoConfig.for_model("llama", vocab_size=260, **SIZES["llama"])
    transformers.AutoModelForCausalLM.from_config(small).save_pretrained(tmp_path / "model")
    task = task_of(path=str(tmp_path / "model"), config={"num_hidden_layers": 3})
    task.build()
    with pytest.raises(ConfigError, match=r"holds no model.layers.2"):
        task.initial_weight("model.layers.2.mlp.up_proj.weight")
