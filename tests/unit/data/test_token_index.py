"""A directory of token files: how files become parts, and what its index promises."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.config import TokensData
from workers.data import DataError, load_dataset, token_files
from workers.data.document import BadRow, Document
from workers.data.token_file import TokenHeader, write_token_file
from workers.data.token_index import INDEX_NAME, cut_into_parts, index_of, part_name, read_index


@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=60), part_bytes=st.integers(1, 300))
def test_parts_hold_every_file_once_in_order_and_enough_bytes(sizes: list[int], part_bytes: int) -> None:
    parts = cut_into_parts(sizes, part_bytes=part_bytes)
    assert list(chain(*parts)) == list(range(len(sizes)))
    for part in parts[:-1]:
        filled = [sizes[number] for number in part]
        assert sum(filled) >= part_bytes > sum(filled[:-1])


def write(directory: Path, number: int, first: int = 0) -> TokenHeader:
    documents = [
        Document(ids=np.arange(first, first + 9)),
        BadRow(place=f"{number}.jsonl:4", reason="no JSON"),
    ]
    return write_token_file(directory / part_name(number), documents, vocab_size=300, tokenizer="test")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    headers = [write(tmp_path, number, first=10 * number) for number in range(3)]
    (tmp_path / INDEX_NAME).write_text(index_of({"kind": "jsonl"}, headers).to_json())
    return tmp_path


def test_an_index_tells_what_lies_there(prepared: Path) -> None:
    index = read_index(prepared)
    assert (index.tokens, index.documents, index.bad_rows, index.vocab_size) == (27, 3, 3, 300)
    assert index.first_bad_rows[0] == "0.jsonl:4: no JSON"
    assert [file.name for file in index.files] == [part_name(number) for number in range(3)]
    assert token_files(prepared) == [prepared / part_name(number) for number in range(3)]
    data = TokensData(kind="tokens", path=str(prepared), seq_len=4)
    assert len(load_dataset(data, prepared / "unused")) == 6


def test_a_file_that_the_index_does_not_list_is_no_data(prepared: Path) -> None:
    write(prepared, 7)
    assert len(token_files(prepared)) == 3


def test_a_file_that_is_gone_or_another_one_is_named(prepared: Path) -> None:
    write(prepared, 1, first=11)
    with pytest.raises(DataError, match=r"part-00001\.tokens is not the file that index\.json lists"):
        token_files(prepared)
    (prepared / part_name(1)).unlink()
    with pytest.raises(DataError, match=r"cannot read token file .*part-00001\.tokens"):
        token_files(prepared)


@pytest.mark.parametrize("content", ["", "[]", '{"format": "shardyard-token-index 9"}'])
def test_what_is_no_index_is_named(prepared: Path, content: str) -> None:
    (prepared / INDEX_NAME).write_text(content)
    with pytest.raises(DataError, match=r"index\.json is no index of token files"):
        token_files(prepared)
