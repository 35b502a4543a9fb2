"""Models of transformers, adapters to them and a user's own network train under every engine as they do outside."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from engine_runs import ENGINES, LOW
from model_runs import ADAPTERS, GPT2, LLAMA, Job, Trained, hf, life, tokens, train_all, train_outside

from workers.models import load_task
from workers.models.task import Task

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch
transformers = pytest.importorskip("transformers")

SavedModel = Callable[..., Any]


@pytest.fixture
def saved(tmp_path: Path) -> SavedModel:
    """Save a small model as transformers does, in several files, under `tmp_path / "model"`; return it."""

    def save(architecture: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> Any:
        settings = dict(architecture)
        configuration = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(configuration, dtype=dtype)
        model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
        return model

    return save


def assert_alike(found: Trained, losses: list[float], weights: Mapping[str, torch.Tensor]) -> None:
    assert found.losses == pytest.approx(losses, rel=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("architecture", [LLAMA, GPT2], ids=lambda config: config["model_type"])
def test_a_pretrained_model_trains_under_every_engine_as_outside(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel, architecture: dict[str, Any]
) -> None:
    outside = saved(architecture)

    def loss_of(indices: range) -> torch.Tensor:
        batch = tokens(indices)
        logits = outside(input_ids=batch["tokens"]).logits
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    losses, weights = train_outside(outside, loss_of)
    jobs = [Job(hf(path=str(tmp_path / "model")), name) for name in ENGINES]
    (results, _) = ranks(train_all, 2, jobs, seconds=120)
    for found in results:
        assert_alike(found, losses, weights)


def test_a_users_own_task_trains_under_every_engine_as_outside(ranks: "Launcher") -> None:
    """The example package: convolutions, a loss of its own, and samples that are drawn by number."""
    job = Job(life(), "ddp")
    task: Task = load_task(job.config())
    torch.manual_seed(job.config().train.seed)
    outside = task.build()

    def loss_of(indices: range) -> torch.Tensor:
        batch = job.batch(indices)
        return task.loss_sum(outside, batch) / task.num_tokens(batch)

    losses, weights = train_outside(outside, loss_of)
    (results, _) = ranks(train_all, 2, [Job(life(), name) for name in ENGINES], seconds=120)
    for found in results:
        assert_alike(found, losses, weights)


def test_random_weights_are_the_same_at_every_width_and_engine(ranks: "Launcher") -> None:
    jobs = [Job(hf(config=LLAMA, weights="random"), name) for name in ENGINES]
    ((alone,),) = ranks(train_all, 1, jobs[:1])
    (results, _) = ranks(train_all, 2, jobs, seconds=120)
    for found in results:
        assert found.losses == pytest.approx(alone.losses, rel=1e-5)
    assert alone.losses[0] == pytest.approx(torch.tensor(260.0).log().item(), rel=0.05), "knows nothing yet"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32-base", "bf16-base"])
def test_only_adapters_train_and_only_they_have_optimizer_state(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel, dtype: torch.dtype
) -> None:
    """B017: under every engine alike, and the base stays as its checkpoint has it, dtype and all."""
    pytest.importorskip("peft")
    base = dict(saved(LLAMA, dtype).named_parameters())
    model = hf(path=str(tmp_path / "model"), lora=ADAPTERS)
    (results, _) = ranks(train_all, 2, [Job(model, name) for name in ENGINES], seconds=120)
    first = results[0]
    assert first.stepped
    assert all(".lora_" in name for name in first.stepped)
    for name, weight in first.weights.items():
        original = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        if ".lora_" not in name:
            assert weight.dtype == dtype, name
            assert weight.equal(base[original]), name
    assert all(weight.abs().sum() > 0 for name, weight in first.weights.items() if ".lora_B." in name)
    for found in results[1:]:
        assert_alike(found, first.losses, first.weights)
        assert found.stepped == first.stepped


def test_documents_and_adapters_train_in_bf16_as_in_fp32(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel
) -> None:
    """The mask that keeps documents apart is of a dtype that attention takes, whatever the engine casts."""
    pytest.importorskip("peft")
    saved(LLAMA, torch.bfloat16)
    path = str(tmp_path / "model")
    ours = {"kind": "llama", "size": "nano"}
    for model in (hf(path=path), hf(path=path, lora=ADAPTERS), ours):
        exact = Job(model, "ddp", with_documents=True)
        jobs = [exact, *(Job(model, name, params="bf16", with_documents=True) for name in LOW)]
        (results, _) = ranks(train_all, 2, jobs, seconds=120)
        for found in results[1:]:
            assert found.losses == pytest.approx(results[0].losses, rel=5e-3)
