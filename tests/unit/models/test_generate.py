"""Text from an exported model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workers.contract.config import LlamaModel
from workers.data.tokenizer import ByteTokenizer
from workers.data.tokenizer_file import read_tokenizer, train_bpe
from workers.models.generate import (
    ExportedModel,
    ExportedModelError,
    generate_ids,
    generate_text,
    load_exported,
)
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


def greedy(model: ExportedModel, prompt: list[int]) -> list[int]:
    return generate_ids(model, prompt, num_tokens=5, allowed=range(256), temperature=0, seed=0)


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
def test_only_what_is_allowed_is_written_and_it_repeats_by_seed(directory: Path, temperature: float) -> None:
    model, allowed = load_exported(directory), {*range(40, 200)}
    ids = [
        generate_ids(model, [256], num_tokens=50, allowed=allowed, temperature=temperature, seed=s)
        for s in (1, 1, 2)
    ]
    assert len(ids[0]) == 50
    assert allowed.issuperset(ids[0])
    assert ids[0] == ids[1]
    assert (ids[0] == ids[2]) == (temperature == 0)


def test_only_the_context_counts(directory: Path) -> None:
    model = load_exported(directory)
    long = [*range(100), *range(32)]
    assert greedy(model, long) == greedy(model, long[-32:])


def test_greedy_takes_the_likeliest_token_each_time(directory: Path) -> None:
    model = load_exported(directory)
    ids = [256, 100, 101]
    for _ in range(5):
        ids.append(int(model.module(torch.tensor([ids]))[0, -1, :256].argmax()))
    assert greedy(model, [256, 100, 101]) == ids[3:]


def test_bytes_come_as_many_as_asked_whatever_the_prompt(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(ByteTokenizer().to_json())
    allowed = read_tokenizer(directory).text_ids
    assert allowed == set(range(256))
    for prompt in ("", "def ", "é"):
        ids = [256, *prompt.encode()]
        raw = generate_ids(
            load_exported(directory), ids, num_tokens=30, allowed=allowed, temperature=0, seed=0
        )
        text = generate_text(directory, prompt, num_tokens=30, temperature=0)
        assert text == bytes(raw).decode(errors="replace")


def test_text_is_written_in_the_tokens_of_the_export_without_its_marks(write_export: WriteExport) -> None:
    directory = write_export(*new_llama(vocab_size=280))
    corpus = [b"one text after another, and another one"] * 9
    (directory / "tokenizer.json").write_text(train_bpe(corpus, vocab_size=280))
    tokenizer = read_tokenizer(directory)
    assert tokenizer.text_ids == set(range(3, tokenizer.vocab_size)), "marks are its first ids"
    ids = [tokenizer.document_mark, *tokenizer.encode([b"one "])[0]]
    assert len(ids) < 1 + len("one "), "a token is more than a byte here"
    raw = generate_ids(
        load_exported(directory), ids, num_tokens=20, allowed=tokenizer.text_ids, temperature=0.8, seed=3
    )
    assert generate_text(directory, "one ", num_tokens=20, seed=3) == tokenizer.decode(raw)


def test_an_export_that_does_not_say_what_an_id_means_is_named(directory: Path) -> None:
    with pytest.raises(ExportedModelError, match=r"holds no tokenizer\.json that says what an id means"):
        generate_text(directory, "def ", num_tokens=3)


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
