"""Token files: what is written is read, and damage is named."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.data import DataError, token_files
from workers.data.document import BadRow, Document
from workers.data.token_file import TokenHeader, open_token_file, read_header, write_token_file
from workers.errors import StorageError


def write(path: Path, *parts: list[int], vocab_size: int = 260) -> TokenHeader:
    documents = (Document(ids=np.array(part, dtype=np.int64)) for part in parts)
    return write_token_file(path, documents, vocab_size=vocab_size, tokenizer="bytes")


@pytest.mark.parametrize(("vocab_size", "dtype"), [(260, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_come_back_in_the_smallest_dtype_that_holds_them(
    tmp_path: Path, vocab_size: int, dtype: str
) -> None:
    written = write(tmp_path / "a.tokens", [1, 2, vocab_size - 1], [], [0], vocab_size=vocab_size)
    header = read_header(tmp_path / "a.tokens")
    assert header == written
    assert (header.dtype, header.count) == (dtype, 4)
    tokens = open_token_file(tmp_path / "a.tokens").ids
    assert tokens.dtype == np.dtype(dtype)
    assert tokens.tolist() == [1, 2, vocab_size - 1, 0]


def test_the_digest_names_ids_and_documents_and_what_is_learnt(tmp_path: Path) -> None:
    def digest(*documents: Document) -> str:
        return write_token_file(tmp_path / "a.tokens", documents, vocab_size=260, tokenizer="bytes").digest

    ids = np.array([1, 2, 3])
    whole = digest(Document(ids=ids))
    assert whole == digest(Document(ids=ids), Document(ids=np.array([], dtype=np.int64)))
    others = [
        digest(Document(ids=ids[:1]), Document(ids=ids[1:])),
        digest(Document(ids=np.array([1, 2, 4]))),
        digest(Document(ids=ids, is_learnt=np.array([True, False, True]))),
        digest(Document(ids=ids, is_learnt=np.array([True, True, False]))),
    ]
    assert len({whole, *others}) == 5


@given(
    documents=st.lists(
        st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), max_size=12), min_size=1, max_size=8
    ),
    cut=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_documents_and_what_is_learnt_of_them_are_known_of_any_stretch(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[tuple[int, bool]]], cut: tuple[int, int]
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "a.tokens"
    write_token_file(
        path,
        [
            Document(
                ids=np.array([token for token, _ in document], dtype=np.int64),
                is_learnt=np.array([learnt for _, learnt in document], dtype=np.bool_),
            )
            for document in documents
        ],
        vocab_size=70_001,
        tokenizer="test",
    )
    file = open_token_file(path)
    filled = [document for document in documents if document]
    expected = [(number, learnt) for number, document in enumerate(filled) for _, learnt in document]
    start, stop = min(*cut, len(expected)), min(max(cut), len(expected))
    assert file.documents(start, stop).tolist() == [number for number, _ in expected[start:stop]]
    if filled:
        assert file.is_learnt(start, stop).tolist() == [learnt for _, learnt in expected[start:stop]]
        assert file.ids.tolist() == [token for document in documents for token, _ in document]


def test_bad_rows_are_counted_and_the_first_of_them_named_whatever_they_hold(tmp_path: Path) -> None:
    """B035."""
    rows = [BadRow(place="ü" * 5000 + f":{number}", reason='\n"\\' * 5000) for number in range(7)]
    documents = [rows[0], Document(ids=np.array([1, 2])), *rows[1:]]
    written = write_token_file(tmp_path / "a.tokens", documents, vocab_size=260, tokenizer="bytes")
    header = read_header(tmp_path / "a.tokens")
    assert header == written
    assert (header.num_bad_rows, header.num_documents, header.count) == (7, 1, 2)
    assert len(header.bad_rows) == 3
    assert header.bad_rows[0].startswith("ü")
    assert ":0: " in header.bad_rows[0]
    assert "\n" not in header.bad_rows[0]


def test_a_file_of_no_tokens_can_be_read(tmp_path: Path) -> None:
    header = write(tmp_path / "a.tokens")
    file = open_token_file(tmp_path / "a.tokens")
    assert header.count == file.ids.size == file.starts.size == 0


def test_a_cut_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    write(path, [1, 2, 3])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"a\.tokens has 4111 bytes where its header says 4112"):
        read_header(path)


def test_another_kind_of_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.tokens").write_text("hello")
    with pytest.raises(
        DataError, match="is not a token file of this version: make one with `shardyard data prepare`"
    ):
        read_header(tmp_path / "a.tokens")


@pytest.mark.parametrize("broken", [b'{"dtype": ', b'{"dtype": "uint16"}      '])
def test_a_damaged_header_is_refused(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "a.tokens"
    write(path, [1, 2, 3])
    content = bytearray(path.read_bytes())
    content[19:4096] = broken.ljust(4096 - 19)
    path.write_bytes(content)
    with pytest.raises(DataError, match="header that cannot be read"):
        read_header(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    write(path, [1, 2, 3])

    def parts() -> object:
        yield Document(ids=np.array([4]))
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write token file .*a\.tokens.*No space left"):
        write_token_file(path, parts(), vocab_size=260, tokenizer="bytes")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["a.tokens"]
    assert open_token_file(path).ids.tolist() == [1, 2, 3]


def test_a_directory_means_its_token_files_by_name(tmp_path: Path) -> None:
    for name in ("b.tokens", "a.tokens"):
        write(tmp_path / name, [1])
    (tmp_path / "notes.txt").write_text("not data")
    (tmp_path / ".a.tokens.x.part").write_text("of a writer that was killed")
    assert [path.name for path in token_files(tmp_path)] == ["a.tokens", "b.tokens"]
    assert token_files(tmp_path / "b.tokens") == [tmp_path / "b.tokens"]


def test_no_token_file_is_said_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*\.tokens file lies in"):
        token_files(tmp_path)
    with pytest.raises(DataError, match=r"there is no file or directory .*nowhere on this node"):
        token_files(tmp_path / "nowhere")
