"""Models of transformers, adapters to them and a user's own network train under every engine as they do outside."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from engine_runs import ENGINES, LOW
from model_runs import (
    ADAPTERS,
    GPT2,
    LLAMA,
    Job,
    Trained,
    go_on_from,
    hf,
    life,
    tokens,
    train,
    train_all,
    train_outside,
)

from workers.checkpointing import catalog
from workers.models import load_task
from workers.models.task import DeferredTask, Task
from workers.world import World

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


def loss_outside(model: Any, indices: range) -> torch.Tensor:
    batch = tokens(indices)
    logits = model(input_ids=batch["tokens"]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def imported_by_training(world: World, job: Job) -> list[str]:
    before = set(sys.modules)
    train(world, job)
    return sorted(set(sys.modules) - before)


@pytest.mark.parametrize("architecture", [LLAMA, GPT2], ids=lambda config: config["model_type"])
def test_a_pretrained_model_trains_under_every_engine_as_outside(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel, architecture: dict[str, Any]
) -> None:
    outside = saved(architecture)
    losses, weights = train_outside(outside, lambda indices: loss_outside(outside, indices))
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


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32-base", "bf16-base"])
def test_only_adapters_train_under_every_engine_as_outside(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel, dtype: torch.dtype
) -> None:
    """B017: the base stays as it is, also where its checkpoint is bf16; only adapters have a state of the optimizer."""
    peft = pytest.importorskip("peft")
    base = saved(LLAMA, dtype).float()
    model = hf(path=str(tmp_path / "model"), lora=ADAPTERS)
    outside = peft.get_peft_model(
        base, peft.LoraConfig(r=2, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    task = load_task(Job(model, "ddp").config())
    assert isinstance(task, DeferredTask)
    task.build()
    with torch.no_grad():
        for name, parameter in outside.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(task.initial_weight(name))
    losses, weights = train_outside(outside, lambda indices: loss_outside(outside, indices))
    adapters = {name: weight for name, weight in weights.items() if ".lora_" in name}
    (results, _) = ranks(train_all, 2, [Job(model, name) for name in ENGINES], seconds=120)
    for found in results:
        assert_alike(found, losses, adapters)
        assert found.stepped == sorted(adapters)
        assert found.weights.keys() == adapters.keys(), "what a checkpoint holds"


def test_a_run_of_adapters_goes_on_under_any_engine_from_a_checkpoint_without_the_base(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel
) -> None:
    pytest.importorskip("peft")
    saved(LLAMA, torch.bfloat16)
    model = hf(path=str(tmp_path / "model"), lora=ADAPTERS)
    jobs = [Job(model, name) for name in ENGINES]
    ((straight, resumed), _) = ranks(
        go_on_from, 2, str(tmp_path / "run"), Job(model, "fsdp-3"), jobs, seconds=120
    )
    for losses in resumed:
        assert losses == pytest.approx(straight, rel=1e-6)
    (manifest,) = catalog.published(str(tmp_path / "run"))
    assert all(".lora_" in name for name in manifest.tensors)


def test_ranks_of_an_hf_job_import_nothing_late_but_the_models_own_code(
    ranks: "Launcher", tmp_path: Path, saved: SavedModel
) -> None:
    """What their forkserver has imported for them makes a round start seconds sooner."""
    pytest.importorskip("peft")
    saved(LLAMA)
    model = hf(path=str(tmp_path / "model"), lora=ADAPTERS)
    (late,) = ranks(imported_by_training, 1, Job(model, "fsdp-3"))
    heavy = [name for name in late if name.startswith(("torch.", "transformers.", "peft."))]
    assert [name for name in heavy if not name.startswith("transformers.models.llama")] == []


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
