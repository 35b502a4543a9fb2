"""`attention: within`: each document of a window by itself."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.config import TextData
from workers.data import TokenDataset, load_dataset
from workers.data.document import Document
from workers.data.token_file import write_token_file
from workers.data.tokenizer import BOS

MARK = 99


def write(path: Path, documents: list[list[int]], *, mark: int | None = MARK) -> Path:
    write_token_file(
        path,
        [Document(ids=np.array(document, dtype=np.int64)) for document in documents],
        vocab_size=100,
        tokenizer="test",
        document_mark=mark,
    )
    return path


def test_a_window_numbers_its_documents_and_a_text_ends_with_the_mark_of_the_next(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tokens", [[MARK, 1, 2], [MARK, 3], [MARK, 4, 5, 6, 7]])
    batch = TokenDataset([path], seq_len=3, attention="within").batch([0, 1, 2])
    assert batch["tokens"].tolist() == [[MARK, 1, 2], [MARK, 3, MARK], [4, 5, 6]]
    assert batch["labels"].tolist() == [[1, 2, MARK], [3, MARK, 4], [5, 6, 7]]
    assert batch["documents"].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_without_a_mark_a_text_predicts_nothing_at_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tokens", [[1, 2], [3], [4, 5, 6, 7]], mark=None)
    batch = TokenDataset([path], seq_len=3, attention="within").batch([0, 1])
    assert batch["labels"].tolist() == [[2, -100, -100], [5, 6, 7]]
    assert batch["documents"].tolist() == [[0, 0, 1], [0, 0, 0]]


@given(
    documents=st.lists(
        st.lists(st.integers(0, 98), max_size=9).map(lambda ids: [MARK, *ids]), min_size=1, max_size=9
    ),
    seq_len=st.integers(1, 8),
)
def test_documents_only_add_to_a_window(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], seq_len: int
) -> None:
    stream = [token for document in documents for token in document]
    path = write(tmp_path_factory.mktemp("tokens") / "a.tokens", documents)
    if len(stream) <= seq_len:
        return
    within = TokenDataset([path], seq_len=seq_len, attention="within")
    across = TokenDataset([path], seq_len=seq_len)
    every = range(len(within))
    batch, plain = within.batch(every), across.batch(every)
    assert within.digest != across.digest
    assert batch["tokens"].equal(plain["tokens"])
    assert batch["labels"].equal(plain["labels"])
    assert set(plain) == {"tokens", "labels"}
    for tokens, numbers in zip(batch["tokens"].tolist(), batch["documents"].tolist(), strict=True):
        assert numbers[0] == 0
        for (_, before), (token, after) in pairwise(zip(tokens, numbers, strict=True)):
            assert after - before == (token == MARK)


def test_a_job_of_text_gets_documents_where_it_asks_for_them(tmp_path: Path) -> None:
    root = tmp_path / "corpus"
    root.mkdir()
    for name in ("a", "b", "c"):
        (root / f"{name}.py").write_text(name * 3)
    data = TextData(kind="text", path=str(root), seq_len=8, attention="within")
    batch = load_dataset(data, tmp_path / "cache").batch([0])
    assert batch["tokens"].tolist() == [[BOS, 97, 97, 97, BOS, 98, 98, 98]]
    assert batch["documents"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[97, 97, 97, BOS, 98, 98, 98, BOS]]
