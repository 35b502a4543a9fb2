"""The Llama family behind the `Task` protocol."""

from pathlib import Path

import numpy as np
import pytest
import torch

from workers.contract.config import TrainingConfig
from workers.data import DataError
from workers.data.document import Document
from workers.data.token_file import write_token_file
from workers.engines.weights import fill
from workers.models import Task, load_task, open_dataset
from workers.models.task import DeferredTask

SENTENCE = "the quick brown fox jumps over the lazy dog; "


def config(path: Path, **model: object) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "llama", "size": "nano", **model},
            "data": {"kind": "text", "path": str(path), "pattern": "*.txt", "seq_len": 32},
        }
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(SENTENCE * 40)
    return tmp_path


def filled(task: Task) -> torch.nn.Module:
    """Build the module and give every parameter its first value, as an engine does."""
    assert isinstance(task, DeferredTask)
    module = task.build()
    for name, parameter in list(module.named_parameters()):
        fill(parameter, task.initial_weight(name))
    return module


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_first_weights_come_by_name_in_the_shapes_of_the_module(tmp_path: Path, tie_embeddings: bool) -> None:
    tasks = [load_task(config(tmp_path, tie_embeddings=tie_embeddings, num_kv_heads=2)) for _ in range(2)]
    assert all(isinstance(task, DeferredTask) for task in tasks)
    module = tasks[0].build()
    assert all(parameter.is_meta for parameter in module.parameters())
    for name, parameter in module.named_parameters():
        value = tasks[0].initial_weight(name)
        assert value.shape == parameter.shape, name
        assert value.equal(tasks[1].initial_weight(name)), "a function of seed and name"
        expected = 1.0 if "norm" in name else 0.0
        assert value.mean().item() == pytest.approx(expected, abs=0.01)


def test_a_token_sees_nothing_of_another_document(tmp_path: Path) -> None:
    module = filled(load_task(config(tmp_path)))
    first, second = torch.arange(10), torch.arange(40, 52)
    together = torch.cat([first, second])[None]
    documents = torch.tensor([[0] * 10 + [1] * 12])
    logits = module(together, documents)
    torch.testing.assert_close(logits[:, :10], module(first[None]))
    torch.testing.assert_close(logits[:, 10:], module(second[None]))
    assert not module(together)[:, 10:].allclose(logits[:, 10:], atol=1e-3)


def test_loading_builds_nothing_and_opens_nothing(tmp_path: Path) -> None:
    task = load_task(config(tmp_path / "nowhere"))
    assert isinstance(task, Task)
    with pytest.raises(DataError, match="nowhere"):
        open_dataset(task, tmp_path / "cache")


def test_blocks_are_the_layers_in_order(tmp_path: Path) -> None:
    task = load_task(config(tmp_path, num_layers=3))
    module = task.build()
    names = {id(child): name for name, child in module.named_modules()}
    assert [names[id(block)] for block in task.blocks(module)] == [f"model.layers.{i}" for i in range(3)]


def test_the_loss_is_a_sum_that_does_not_depend_on_how_a_batch_is_cut(corpus: Path, tmp_path: Path) -> None:
    task = load_task(config(corpus))
    dataset = open_dataset(task, tmp_path / "cache")
    module = filled(task)
    whole = dataset.batch(range(6))
    parts = [dataset.batch(ids) for ids in ([0], [1, 2, 3], [4, 5])]
    total = task.loss_sum(module, whole)
    assert total.shape == ()
    torch.testing.assert_close(sum(task.loss_sum(module, part) for part in parts), total)
    assert task.num_tokens(whole) == sum(task.num_tokens(part) for part in parts) == 6 * 32


def test_the_loss_is_summed_in_fp32_from_bf16_logits(corpus: Path, tmp_path: Path) -> None:
    task = load_task(config(corpus))
    module = filled(task).to(torch.bfloat16)
    assert task.loss_sum(module, open_dataset(task, tmp_path / "cache").batch([0])).dtype == torch.float32


def test_a_small_model_learns_a_sentence(corpus: Path, tmp_path: Path) -> None:
    task = load_task(config(corpus))
    dataset = open_dataset(task, tmp_path / "cache")
    torch.manual_seed(0)
    module = filled(task)
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    losses = []
    for step in range(60):
        batch = dataset.batch([(8 * step + i) % len(dataset) for i in range(8)])
        loss = task.loss_sum(module, batch) / task.num_tokens(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 5.4
    assert losses[-1] < 1.0


def tokens_config(path: Path, **model: object) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "llama", "size": "nano", **model},
            "data": {"kind": "tokens", "path": str(path), "seq_len": 8},
        }
    )


def test_token_files_say_how_many_rows_the_table_needs(tmp_path: Path) -> None:
    write_token_file(
        tmp_path / "a.tokens", [Document(ids=np.arange(100))], vocab_size=1000, tokenizer="other"
    )
    write_token_file(
        tmp_path / "b.tokens", [Document(ids=np.arange(100))], vocab_size=1200, tokenizer="other"
    )
    module = load_task(tokens_config(tmp_path)).build()
    assert module.get_parameter("model.embed_tokens.weight").shape[0] == 1200


def test_a_table_that_is_too_small_for_the_tokens_is_refused_before_training(tmp_path: Path) -> None:
    task = load_task(tokens_config(tmp_path, vocab_size=300))
    write_token_file(
        tmp_path / "a.tokens", [Document(ids=np.arange(100))], vocab_size=1000, tokenizer="other"
    )
    with pytest.raises(DataError, match=r"model\.vocab_size: 300 is below the 1000 ids"):
        open_dataset(task, tmp_path / "cache")
