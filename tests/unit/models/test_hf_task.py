"""Models of transformers behind the `Task` protocol."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.contract.config import TrainingConfig
from workers.engines.weights import fill
from workers.errors import ConfigError
from workers.models import load_task
from workers.models.task import DeferredTask

transformers = pytest.importorskip("transformers")

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


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A checkpoint of a small model, as transformers writes it."""

    def save(kind: str, dtype: torch.dtype = torch.float32) -> Path:
        settings = transformers.AutoConfig.for_model(kind, vocab_size=260, **SIZES[kind])
        transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype).save_pretrained(tmp_path)
        return tmp_path

    return save


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


@pytest.mark.parametrize("kind", SIZES)
def test_weights_are_drawn_as_transformers_draws_them(kind: str) -> None:
    """Also those that depend on where a part lies: GPT-2's projections into the residual stream."""
    settings = {"vocab_size": 260, **SIZES[kind]}
    outside = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **settings)
    )
    theirs = dict(outside.named_parameters())
    ours = dict(filled(task_of(config={"model_type": kind, **settings}, weights="random")).named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert parameter.std(correction=0).item() == pytest.approx(
            theirs[name].std(correction=0).item(), rel=0.2
        ), name
        assert parameter.mean().item() == pytest.approx(theirs[name].mean().item(), abs=0.005), name


def test_a_drawn_weight_depends_on_seed_and_name_alone() -> None:
    model = {"config": {"model_type": "gpt2", "vocab_size": 260, **SIZES["gpt2"]}, "weights": "random"}
    name, other = "transformer.h.1.mlp.c_proj.weight", "transformer.h.0.mlp.c_proj.weight"
    values = []
    for before in ((), (other,)):
        task = task_of(**model)
        task.build()
        state = torch.get_rng_state()
        drawn = {n: task.initial_weight(n) for n in (*before, name)}
        assert torch.get_rng_state().equal(state), "the ranks' own generator is left alone"
        values.append(drawn[name])
    assert values[0].equal(values[1])
    assert not values[0].equal(drawn[other])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"path": "./nowhere"}, "holds no config.json"),
        ({"config": {"hidden_size": 8}, "weights": "random"}, "model_type is missing"),
        ({"config": {"model_type": "lama"}, "weights": "random"}, "lama"),
        ({"path": "org/name", "token_env": "NOBODY_SET_THIS"}, "no environment variable NOBODY_SET_THIS"),
    ],
)
def test_a_model_that_is_not_there_is_refused_by_name(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_of(**model)


def test_a_model_that_writes_no_text_is_refused_by_its_kind() -> None:
    task = task_of(config={"model_type": "vit", "hidden_size": 8}, weights="random")
    with pytest.raises(ConfigError, match="vit makes no causal language model"):
        task.build()


@pytest.mark.parametrize(
    ("module", "model", "message"),
    [
        ("transformers", {"config": {"model_type": "gpt2"}, "weights": "random"}, "model.kind hf: .*"),
        ("peft", {"lora": {}}, "model.lora: .*"),
    ],
)
def test_a_missing_extra_is_refused_with_what_to_install(
    module: str,
    model: dict[str, Any],
    message: str,
    saved: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = {} if "config" in model else {"path": str(saved("llama"))}
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{message}pip install 'shardyard\[hf\]'"):
        task_of(**model, **path).build()


@pytest.mark.parametrize("target", ["nowhere_proj", "embed_tokens"])
def test_adapters_that_fit_no_linear_layer_are_refused_by_their_key(
    saved: Callable[..., Path], target: str
) -> None:
    task = task_of(path=str(saved("llama")), lora={"target_modules": [target]})
    with pytest.raises(ConfigError, match=rf"model\.lora\.target_modules: .*{target}"):
        task.build()


def test_adapters_change_nothing_at_first_and_what_is_frozen_keeps_its_dtype(
    saved: Callable[..., Path],
) -> None:
    path = saved("llama", dtype=torch.bfloat16)
    tokens = torch.arange(12)[None]
    plain, adapted = task_of(path=str(path)), task_of(path=str(path), lora={"rank": 2})
    module = adapted.build()
    assert {p.dtype for p in module.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in filled(plain).parameters()} == {torch.float32}
    assert loss_of(adapted, filled(adapted), tokens) == loss_of(plain, filled(plain), tokens)


def test_a_checkpoint_that_was_saved_without_a_head_is_read_by_the_same_names(tmp_path: Path) -> None:
    """As GPT-2's own on the hub: `h.0.…`, not `transformer.h.0.…`."""
    settings = transformers.AutoConfig.for_model("gpt2", vocab_size=260, **SIZES["gpt2"])
    body = transformers.AutoModel.from_config(settings)
    body.save_pretrained(tmp_path)
    found = dict(filled(task_of(path=str(tmp_path))).named_parameters())
    assert {name.removeprefix("transformer.") for name in found} == {n for n, _ in body.named_parameters()}
    for name, parameter in body.named_parameters():
        assert found[f"transformer.{name}"].equal(parameter)


def test_a_checkpoint_of_another_model_is_refused_by_the_missing_name(saved: Callable[..., Path]) -> None:
    task = task_of(path=str(saved("llama")), config={"num_hidden_layers": 3})
    task.build()
    with pytest.raises(ConfigError, match=r"holds no model.layers.2"):
        task.initial_weight("model.layers.2.mlp.up_proj.weight")
