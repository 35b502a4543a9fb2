"""Models of transformers train under every engine as they do outside, and what is exported loads outside."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, whole
from sharded_states import make_saver, resume_at

from workers.contract.config import TrainingConfig
from workers.engines import WeightedBatch, build_engine
from workers.export import export
from workers.models import load_task
from workers.schedule import learning_rate
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(
        "ignore:.*is_gradient_checkpointing:FutureWarning"
    ),  # peft asks transformers by an old name
]
transformers = pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 260,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def make_config(model: dict[str, Any], **engine: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "hf", **model},
            "data": {"kind": "text", "path": "python-stdlib", "seq_len": 16},
            "train": {
                "steps": 4,
                "batch": {"global_sequences": 4, "micro": 1},
                "precision": {"params": "fp32"},
                "optimizer": {"lr": 1e-2, "eps": 1e-6},
                "schedule": {"name": "constant", "warmup_steps": 0},
            },
            "engine": {"kind": "ddp", **engine},
        }
    )


def tokens(indices: range) -> dict[str, torch.Tensor]:
    rows = torch.stack(
        [torch.randint(0, 256, (17,), generator=torch.Generator().manual_seed(i)) for i in indices]
    )
    return {"tokens": rows[:, :-1], "labels": rows[:, 1:]}


def train(
    world: World, model: dict[str, Any], engine: dict[str, Any]
) -> tuple[list[float], dict[str, torch.Tensor], list[str]]:
    config = make_config(model, **engine)
    task = load_task(config)
    engine_ = build_engine(config, task, world)
    losses = []
    for step in range(4):
        mine = range(
            step * 4 + world.rank * (4 // world.world_size),
            step * 4 + (world.rank + 1) * (4 // world.world_size),
        )
        batches = [WeightedBatch(batch=tokens(range(i, i + 1)), num_tokens=16, seed=i) for i in mine]
        losses.append(engine_.train_step(batches, learning_rate=learning_rate(step, config.train)).loss)
    state = engine_.state()
    weights = {
        name.removeprefix("model."): whole(t) for name, t in state.items() if name.startswith("model.")
    }
    return losses, weights, sorted(name for name in state if name.endswith(".step"))


def train_and_save(world: World, model: dict[str, Any], engine: dict[str, Any], run_dir: str) -> None:
    config = make_config(model, **engine)
    engine_ = build_engine(config, load_task(config), world)
    batch = WeightedBatch(batch=tokens(range(world.rank, world.rank + 1)), num_tokens=16, seed=0)
    for _ in range(2):
        engine_.train_step([batch], learning_rate=0.05)
    make_saver(world, run_dir).save_final(engine_.state(), engine_.aliases(), resume_at(2))


def train_all(world: World, runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Any]:
    return [train(world, model, engine) for model, engine in runs]


def engines() -> list[dict[str, Any]]:
    return [
        {key.removeprefix("engine__"): value for key, value in changes.items()}
        for changes in ENGINES.values()
    ]


def train_outside(directory: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same training by transformers and torch alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-6)
    losses = []
    for step in range(4):
        batch = tokens(range(step * 4, step * 4 + 4))
        logits = model(input_ids=batch["tokens"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.named_parameters())


@pytest.mark.parametrize("architecture", [LLAMA, GPT2], ids=lambda config: config["model_type"])
def test_a_pretrained_model_trains_under_every_engine_as_outside(
    ranks: "Launcher", tmp_path: Path, architecture: dict[str, Any]
) -> None:
    torch.manual_seed(3)
    settings = dict(architecture)
    outside = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    )
    outside.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    losses, weights = train_outside(tmp_path / "model")
    runs = [({"path": str(tmp_path / "model")}, engine) for engine in engines()]
    (results, _) = ranks(train_all, 2, runs, seconds=120)
    for found, found_weights, _ in results:
        assert found == pytest.approx(losses, rel=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(found_weights[name], weight.detach(), rtol=1e-4, atol=1e-5, msg=name)


def test_random_weights_are_the_same_at_every_width_and_engine(ranks: "Launcher") -> None:
    runs = [({"config": LLAMA, "weights": "random"}, engine) for engine in engines()]
    (alone,) = ranks(train_all, 1, runs[:1])
    (results, _) = ranks(train_all, 2, runs, seconds=120)
    for losses, _, _ in results:
        assert losses == pytest.approx(alone[0][0], rel=1e-5)
    assert alone[0][0][0] == pytest.approx(torch.tensor(260.0).log().item(), rel=0.05), (
        "drawn as transformers does"
    )


def test_only_adapters_train_and_only_they_have_optimizer_state(ranks: "Launcher", tmp_path: Path) -> None:
    """B017: under every engine alike."""
    pytest.importorskip("peft")
    settings = dict(LLAMA)
    outside = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    )
    outside.save_pretrained(tmp_path / "model")
    model = {"path": str(tmp_path / "model"), "lora": {"rank": 2, "target_modules": ["q_proj", "v_proj"]}}
    (results, _) = ranks(train_all, 2, [(model, engine) for engine in engines()], seconds=120)
    losses, weights, trained = results[0]
    base = dict(outside.named_parameters())
    assert trained
    assert all(".lora_" in name for name in trained)
    for name, weight in weights.items():
        original = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        if ".lora_" not in name:
            assert weight.equal(base[original]), name
    assert any(weight.abs().sum() > 0 for name, weight in weights.items() if ".lora_B." in name)
    for other_losses, other_weights, other_trained in results[1:]:
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert other_trained == trained
        for name, weight in weights.items():
            torch.testing.assert_close(other_weights[name], weight, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("engine", ["fsdp-3", "deepspeed-3"])
def test_an_export_loads_in_transformers_and_an_adapter_in_peft(
    ranks: "Launcher", tmp_path: Path, engine: str
) -> None:
    """The whole model by its own names, tied head and all; of adapters they alone, on the base that they were made for."""
    peft = pytest.importorskip("peft")
    settings = dict(LLAMA)
    base = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    )
    base.save_pretrained(tmp_path / "base")
    changes = {key.removeprefix("engine__"): value for key, value in ENGINES[engine].items()}
    batch, logits = tokens(range(3))["tokens"], {}
    for name, lora in (("full", None), ("adapter", {"rank": 2, "target_modules": ["q_proj", "v_proj"]})):
        model = {"path": str(tmp_path / "base"), "lora": lora}
        ranks(train_and_save, 2, model, changes, str(tmp_path / name))
        export(str(tmp_path / name), None, make_config(model, **changes), tmp_path / f"{name}-export")
    full = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "full-export")
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter-export")
    with torch.no_grad():
        for name, model_ in (("full", full), ("adapter", adapted)):
            logits[name] = model_.eval()(input_ids=batch).logits
    assert sorted(path.name for path in (tmp_path / "adapter-export").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert adapted.peft_config["default"].base_model_name_or_path == str(tmp_path / "base")
    with adapted.disable_adapter(), torch.no_grad():
        untouched = adapted(input_ids=batch).logits
    assert not logits["adapter"].equal(untouched)
    assert not logits["full"].allclose(untouched, atol=1e-3)
