"""Windows over token files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.config import TokensData
from workers.data import DataError, Dataset, TokenDataset, load_dataset
from workers.data.document import Document
from workers.data.order import sample_ids
from workers.data.token_file import write_token_file


def write(path: Path, count: int, first: int = 0) -> Path:
    document = Document(ids=np.arange(first, first + count))
    write_token_file(path, [document], vocab_size=100_000, tokenizer="test")
    return path


def test_a_data_set_of_tokens_fulfils_the_protocol(tmp_path: Path) -> None:
    assert isinstance(TokenDataset([write(tmp_path / "a.tokens", 9)], seq_len=4), Dataset)


@given(count=st.integers(0, 60), seq_len=st.integers(1, 12))
def test_every_token_is_predicted_once_but_for_a_counted_tail(
    tmp_path_factory: pytest.TempPathFactory, count: int, seq_len: int
) -> None:
    path = write(tmp_path_factory.mktemp("tokens") / "a.tokens", count)
    if count < seq_len + 1:
        with pytest.raises(DataError, match=f"{count} tokens in 1 file.* one sample needs, {seq_len + 1} "):
            TokenDataset([path], seq_len=seq_len)
        return
    dataset = TokenDataset([path], seq_len=seq_len)
    batch = dataset.batch(range(len(dataset)))
    predicted = len(dataset) * seq_len
    assert batch["tokens"].flatten().tolist() == list(range(predicted))
    assert batch["labels"].flatten().tolist() == list(range(1, predicted + 1))
    assert dataset.num_dropped_tokens == count - 1 - predicted < seq_len


def test_samples_are_numbered_through_all_files_and_cross_none(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.tokens", 9, first=0),
        write(tmp_path / "b.tokens", 3, first=100),  # too short for a window: passed over, and counted
        write(tmp_path / "c.tokens", 6, first=200),
    ]
    dataset = TokenDataset(files, seq_len=4)
    assert len(dataset) == 3
    assert dataset.num_dropped_tokens == 3 + 1
    batch = dataset.batch([2, 0, 1, 0])
    assert batch["tokens"][:, 0].tolist() == [200, 0, 4, 0]
    assert batch["tokens"].dtype == batch["labels"].dtype == torch.int64
    assert batch["labels"].shape == (4, 4)


@pytest.mark.parametrize("sample", [-1, 3])
def test_a_sample_that_is_not_there_is_an_error(tmp_path: Path, sample: int) -> None:
    dataset = TokenDataset([write(tmp_path / "a.tokens", 13)], seq_len=4)
    with pytest.raises(IndexError, match=f"sample {sample} of 3"):
        dataset.batch([sample])


def test_the_digest_follows_content_order_and_length_but_not_names(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.tokens", 20), write(tmp_path / "b.tokens", 21)
    moved = write(tmp_path / "moved.tokens", 20)
    digest = TokenDataset([a, b], seq_len=4).digest
    assert TokenDataset([moved, b], seq_len=4).digest == digest
    others = [TokenDataset([b, a], seq_len=4), TokenDataset([a, b], seq_len=5), TokenDataset([a], seq_len=4)]
    assert len({digest, *(other.digest for other in others)}) == 4


def test_five_files_on_three_workers_are_trained_to_the_last_row(tmp_path: Path) -> None:  # B027
    for number in range(5):
        write(tmp_path / f"{number}.tokens", 9, first=100 * number)
    dataset = load_dataset(TokensData(kind="tokens", path=str(tmp_path), seq_len=4), tmp_path / "cache")
    ids = [sample_ids(range(rank, 12, 3), num_samples=len(dataset), seed=0).tolist() for rank in range(3)]
    first = {int(token) for rank in ids for token in dataset.batch(rank)["tokens"][:, 0]}
    assert first == {100 * number + offset for number in range(5) for offset in (0, 4)}


def test_no_row_at_all_is_refused_with_both_numbers(tmp_path: Path) -> None:  # B027
    write(tmp_path / "a.tokens", 0)
    with pytest.raises(DataError, match=r"0 tokens in 1 file.* fewer than one sample needs, 5 "):
        load_dataset(TokensData(kind="tokens", path=str(tmp_path), seq_len=4), tmp_path / "cache")
