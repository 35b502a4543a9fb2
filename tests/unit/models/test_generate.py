"""Text from an exported model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workers.contract.config import LlamaModel
from workers.models.generate import ExportedModelError, generate_ids, generate_text, load_exported
from workers.models.llama import Llama
from workers.models.llama_dimensions import LlamaDimensions, llama_dimensions

WriteExport = Callable[[Llama, LlamaDimensions], Path]


def new_llama(**fields: object) -> tuple[Llama, LlamaDimensions]:
    dimensions = llama_dimensions(LlamaModel.model_validate({"size": "nano", **fields}), vocab_size=260)
    torch.manual_seed(5)
    return Llama(dimensions), dimensions


@pytest.fixture
def directory(write_export: WriteExport) -> Path:
    return write_export(*new_llama())


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_an_export_is_read_back_as_it_was(write_export: WriteExport, tie_embeddings: bool) -> None:
    module, dimensions = new_llama(tie_embeddings=tie_embeddings)
    model = load_exported(write_export(module, dimensions))
    tokens_BT = torch.arange(20).unsqueeze(0)
    assert torch.equal(model.module(tokens_BT), module(tokens_BT))
    assert model.context_tokens == 32
    assert not model.module.training


def test_loading_draws_nothing_from_the_callers_generator(directory: Path) -> None:
    before = torch.get_rng_state()
    load_exported(directory)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_has_as_many_bytes_as_asked_and_repeats_by_seed(directory: Path, temperature: float) -> None:
    model = load_exported(directory)
    ids = [generate_ids(model, [256], num_tokens=50, temperature=temperature, seed=s) for s in (1, 1, 2)]
    assert len(ids[0]) == 50
    assert max(ids[0]) < 256
    assert ids[0] == ids[1]
    assert (ids[0] == ids[2]) == (temperature == 0)


def test_only_the_context_counts(directory: Path) -> None:
    model = load_exported(directory)
    long = [*range(100), *range(32)]
    assert generate_ids(model, long, num_tokens=5, temperature=0, seed=0) == generate_ids(
        model, long[-32:], num_tokens=5, temperature=0, seed=0
    )


def test_greedy_takes_the_likeliest_byte_each_time(directory: Path) -> None:
    model = load_exported(directory)
    ids = [256, 100, 101]
    for _ in range(4):
        ids.append(int(model.module(torch.tensor([ids]))[0, -1, :256].argmax()))
    assert generate_ids(model, [256, 100, 101], num_tokens=4, temperature=0, seed=0) == ids[3:]


def test_a_prompt_may_be_empty(directory: Path) -> None:
    assert isinstance(generate_text(directory, "", num_bytes=3), str)


def test_a_directory_without_an_export_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportedModelError, match="holds no exported model"):
        load_exported(tmp_path)


@pytest.mark.parametrize("content", ["{", '{"model_type": "bert"}'])
def test_another_configuration_is_refused(directory: Path, content: str) -> None:
    (directory / "config.json").write_text(content)
    with pytest.raises(ExportedModelError, match=r"config\.json is not that of a Llama export"):
        load_exported(directory)


def test_a_cut_weights_file_is_named(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ExportedModelError, match=r"model\.safetensors cannot be read"):
        load_exported(directory)


def test_weights_of_other_sizes_are_named(directory: Path, write_export: WriteExport) -> None:
    kept = (directory / "config.json").read_text()
    write_export(*new_llama(hidden_size=64))
    (directory / "config.json").write_text(kept)
    with pytest.raises(ExportedModelError, match=r"embed_tokens\.weight is \(260, 64\), config\.json says"):
        load_exported(directory)


def test_weights_of_another_structure_are_named(directory: Path, write_export: WriteExport) -> None:
    kept = (directory / "config.json").read_text()
    write_export(*new_llama(num_layers=1))
    (directory / "config.json").write_text(kept)
    with pytest.raises(ExportedModelError, match=r"missing \['model\.layers\.1\."):
        load_exported(directory)
