"""Mixtures: several data sets as one, through the loop's own order and batch plan."""

import json
from pathlib import Path

import numpy as np
import pytest

from workers.contract.batch import plan_batch
from workers.contract.config import MixtureData
from workers.data import DataError, Mixture, load_dataset, open_tokenizer, order_of, vocab_size_of
from workers.data.document import Document
from workers.data.token_file import write_token_file

SIZES = {"code": 30, "chat": 7, "books": 12}
WEIGHTS = {"code": 6.0, "chat": 3.0, "books": 1.0}
FIRST = {"code": 0, "chat": 1000, "books": 2000}


@pytest.fixture
def mixture(tmp_path: Path) -> MixtureData:
    """Three sources of samples of two tokens; the first token of a sample names it."""
    for name, size in SIZES.items():
        ids = np.arange(FIRST[name], FIRST[name] + 2 * size + 1)
        write_token_file(
            tmp_path / f"{name}.tokens", [Document(ids=ids)], vocab_size=5000, tokenizer="numbers"
        )
    return mixture_of(
        {name: {"kind": "tokens", "path": str(tmp_path / f"{name}.tokens")} for name in SIZES}, seq_len=2
    )


def mixture_of(sources: dict[str, dict[str, object]], *, seq_len: int = 4) -> MixtureData:
    return MixtureData.model_validate(
        {
            "kind": "mixture",
            "sources": {
                name: {"weight": WEIGHTS.get(name, 1.0), "data": {**data, "seq_len": seq_len}}
                for name, data in sources.items()
            },
        }
    )


def samples_of_run(
    data: MixtureData, cache: Path, *, steps: range, world_size: int, ratio: float = 0.0
) -> list[list[tuple[str, int]]]:
    """Source and number of each sample that the ranks read, by step, in rank order."""
    dataset = load_dataset(data, cache)
    order = order_of(dataset, seed=3, validation_ratio=ratio)
    plan = plan_batch(global_sequences=10, world_size=world_size, micro=2)
    seen: list[list[tuple[str, int]]] = []
    for step in steps:
        seen.append([])
        for rank in range(world_size):
            for cut in plan.micro_batches(step=step, rank=rank):
                if cut.count:
                    ids = order.ids(range(cut.first, cut.first + cut.count)).tolist()
                    first_tokens = dataset.batch(ids)["tokens"][:, 0].tolist()
                    seen[-1] += [named(token) for token in first_tokens]
    return seen


def named(token: int) -> tuple[str, int]:
    source = max((first, name) for name, first in FIRST.items() if first <= token)[1]
    return source, (token - FIRST[source]) // 2


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_mixture_is_the_same_at_every_world_size(
    mixture: MixtureData, tmp_path: Path, world_size: int
) -> None:
    """B007, B028: and in every step of ten it holds six, three and one, each sample once a pass."""
    runs = [samples_of_run(mixture, tmp_path, steps=range(30), world_size=width) for width in (1, world_size)]
    assert runs[0] == runs[1]
    for step in runs[0]:
        by_source = [sum(source == name for source, _ in step) for name in SIZES]
        assert by_source == [6, 3, 1]
    for name, size in SIZES.items():
        numbers = [number for step in runs[0] for source, number in step if source == name]
        for start in range(0, len(numbers) - size + 1, size):
            assert sorted(numbers[start : start + size]) == list(range(size))


def test_a_mixture_resumes_at_one_integer(mixture: MixtureData, tmp_path: Path) -> None:
    """B056, B057, B059: three restarts at three widths, with accumulation, see what one run sees."""
    whole = samples_of_run(mixture, tmp_path, steps=range(24), world_size=2)
    parts = [(range(5), 2), (range(5, 6), 4), (range(6, 17), 1), (range(17, 24), 3)]
    resumed = [
        step
        for steps, width in parts
        for step in samples_of_run(mixture, tmp_path, steps=steps, world_size=width)
    ]
    assert resumed == whole


def test_held_out_samples_of_every_source_stay_out(mixture: MixtureData, tmp_path: Path) -> None:
    dataset = load_dataset(mixture, tmp_path)
    order = order_of(dataset, seed=3, validation_ratio=0.2)
    held_out = {
        named(token)
        for token in dataset.batch(order.validation_ids(range(order.num_validation)).tolist())["tokens"][
            :, 0
        ].tolist()
    }
    trained = {
        sample
        for step in samples_of_run(mixture, tmp_path, steps=range(60), world_size=2, ratio=0.2)
        for sample in step
    }
    assert {source for source, _ in held_out} == set(SIZES)
    assert not trained & held_out
    assert trained | held_out == {(name, n) for name, size in SIZES.items() for n in range(size)}


def test_the_digest_follows_content_and_the_claim_the_weights(mixture: MixtureData, tmp_path: Path) -> None:
    dataset = load_dataset(mixture, tmp_path)
    heavier = mixture.model_copy(
        update={
            "sources": {
                **mixture.sources,
                "chat": mixture.sources["chat"].model_copy(update={"weight": 9.0}),
            }
        }
    )
    other = load_dataset(heavier, tmp_path)
    assert other.digest == dataset.digest
    claims = {order_of(each, seed=3, validation_ratio=0).claim(each.digest) for each in (dataset, other)}
    assert len(claims) == 2


@pytest.mark.parametrize("sample", [-1, sum(SIZES.values())])
def test_a_sample_that_is_not_there_is_an_error(mixture: MixtureData, tmp_path: Path, sample: int) -> None:
    with pytest.raises(IndexError, match=f"sample {sample} of 49"):
        load_dataset(mixture, tmp_path).batch([sample])


def test_sources_whose_ids_mean_different_things_are_refused(mixture: MixtureData, tmp_path: Path) -> None:
    write_token_file(
        tmp_path / "chat.tokens", [Document(ids=np.arange(9))], vocab_size=5000, tokenizer="words"
    )
    with pytest.raises(DataError, match=r"data\.sources: chat holds tokens of words, books of numbers"):
        load_dataset(mixture, tmp_path)


def test_one_bpe_is_trained_on_all_sources_and_token_files_have_to_be_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "lower lower lower lower"}) + "\n")
    (tmp_path / "b.txt").write_text("newest newest newest newest")
    bpe = {"kind": "bpe", "vocab_size": 280}
    sources: dict[str, dict[str, object]] = {
        "lines": {"kind": "jsonl", "path": str(tmp_path / "a.jsonl"), "tokenizer": bpe},
        "text": {"kind": "text", "path": str(tmp_path / "b.txt"), "tokenizer": bpe},
    }
    cache, data = tmp_path / "cache", mixture_of(sources, seq_len=2)
    assert vocab_size_of(data) == 280
    tokenizer = open_tokenizer(data, cache)
    assert tokenizer is not None
    lengths = [len(ids) for ids in tokenizer.encode([b" lower lower", b" newest newest"])]
    assert max(lengths) < 6  # words of both have become tokens
    dataset = load_dataset(data, cache)
    assert isinstance(dataset, Mixture)
    assert len(list(cache.glob("bpe-280-*.json"))) == 1

    write_token_file(
        tmp_path / "c.tokens", [Document(ids=np.arange(9))], vocab_size=280, tokenizer="json-other"
    )
    sources["old"] = {"kind": "tokens", "path": str(tmp_path / "c.tokens")}
    with pytest.raises(DataError, match=r"data\.sources: old holds tokens of json-other, lines of json-"):
        load_dataset(mixture_of(sources, seq_len=2), cache)
