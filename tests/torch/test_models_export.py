"""What was trained under any engine loads outside, in transformers, peft or plain torch, and computes the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES
from model_runs import ADAPTERS, GPT2, LIFE, LLAMA, Job, hf, life, tokens, train_and_save

from workers.export import export

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch
transformers = pytest.importorskip("transformers")


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model.eval()(input_ids=tokens(range(3))["tokens"]).logits
    return logits


def save_base(architecture: Any, to: Path) -> Any:
    settings = dict(architecture)
    configuration = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(configuration, dtype=torch.bfloat16)
    model.save_pretrained(to)
    return model


@pytest.mark.parametrize("architecture", [LLAMA, GPT2], ids=lambda config: config["model_type"])
def test_transformers_loads_what_every_engine_trained(
    ranks: "Launcher", tmp_path: Path, architecture: Any
) -> None:
    """By its own names, the tied head and all, in fp32 although it began in bf16; nothing missing, nothing unknown."""
    trained = save_base(architecture, tmp_path / "base").float()
    base = logits_of(trained)
    jobs = {str(tmp_path / name): Job(hf(path=str(tmp_path / "base")), name) for name in ENGINES}
    (saved, _) = ranks(train_and_save, 2, jobs, seconds=120)
    for run_dir, job in jobs.items():
        where = export(run_dir, None, job.config(), Path(f"{run_dir}-export")).export_path
        found, report = transformers.AutoModelForCausalLM.from_pretrained(where, output_loading_info=True)
        assert not any(report.values()), report
        assert found.dtype == torch.float32
        trained.load_state_dict(saved[run_dir], strict=False)  # a tied head comes once
        trained.tie_weights()
        assert logits_of(found).equal(logits_of(trained))
        assert not logits_of(found).allclose(base, atol=1e-2)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_peft_loads_the_adapters_that_every_engine_trained(ranks: "Launcher", tmp_path: Path) -> None:
    """They alone are in the file; the base comes from where the adapters say."""
    peft = pytest.importorskip("peft")
    base = logits_of(save_base(LLAMA, tmp_path / "base"))
    model = hf(path=str(tmp_path / "base"), lora=ADAPTERS)
    jobs = {str(tmp_path / name): Job(model, name) for name in ENGINES}
    (saved, _) = ranks(train_and_save, 2, jobs, seconds=120)
    for run_dir, job in jobs.items():
        where = export(run_dir, None, job.config(), Path(f"{run_dir}-export")).export_path
        assert sorted(path.name for path in where.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        found = peft.AutoPeftModelForCausalLM.from_pretrained(where)
        weights = {name: weight for name, weight in found.named_parameters() if ".lora_" in name}
        assert weights.keys() == saved[run_dir].keys()
        assert all(weights[name].equal(weight) for name, weight in saved[run_dir].items())
        assert not logits_of(found).equal(base)
        with found.disable_adapter():
            assert logits_of(found).equal(base)


def test_plain_torch_loads_what_every_engine_trained_of_a_users_task(
    ranks: "Launcher", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the reader that the example package has for it, which knows nothing of ours."""
    jobs = {str(tmp_path / name): Job(life(), name) for name in ENGINES}
    (saved, _) = ranks(train_and_save, 2, jobs, seconds=120)
    monkeypatch.syspath_prepend(LIFE)
    import play  # the example's; only here is its directory on the path

    for run_dir, job in jobs.items():
        where = export(run_dir, None, job.config(), Path(f"{run_dir}-export")).export_path
        net = play.load(where)
        assert net.state_dict().keys() == saved[run_dir].keys()
        assert all(weight.equal(saved[run_dir][name]) for name, weight in net.state_dict().items())
        assert 0 <= play.share_right(net, steps=2) <= 1
