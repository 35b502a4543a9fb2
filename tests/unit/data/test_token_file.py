"""Token files: what is written is read, and damage is named."""

from pathlib import Path

import numpy as np
import pytest

from workers.data import DataError, token_files
from workers.data.token_file import TokenHeader, map_tokens, read_header, write_token_file
from workers.errors import StorageError


def write(path: Path, *parts: list[int], vocab_size: int = 260) -> TokenHeader:
    return write_token_file(
        path, (np.array(part, dtype=np.int64) for part in parts), vocab_size=vocab_size, tokenizer="bytes"
    )


@pytest.mark.parametrize(("vocab_size", "dtype"), [(260, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_come_back_in_the_smallest_dtype_that_holds_them(
    tmp_path: Path, vocab_size: int, dtype: str
) -> None:
    written = write(tmp_path / "a.tokens", [1, 2, vocab_size - 1], [], [0], vocab_size=vocab_size)
    header = read_header(tmp_path / "a.tokens")
    assert header == written
    assert (header.dtype, header.count) == (dtype, 4)
    tokens = map_tokens(tmp_path / "a.tokens", header)
    assert tokens.dtype == np.dtype(dtype)
    assert tokens.tolist() == [1, 2, vocab_size - 1, 0]


def test_the_digest_names_the_content_however_it_came_in(tmp_path: Path) -> None:
    one = write(tmp_path / "a.tokens", [1, 2, 3])
    other = write(tmp_path / "b.tokens", [1], [2, 3])
    third = write(tmp_path / "c.tokens", [1, 2, 4])
    assert one.digest == other.digest != third.digest


def test_a_file_of_no_tokens_can_be_read(tmp_path: Path) -> None:
    header = write(tmp_path / "a.tokens")
    assert map_tokens(tmp_path / "a.tokens", header).size == 0


def test_a_cut_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    write(path, [1, 2, 3])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"a\.tokens has 4101 bytes where its header says 4102"):
        read_header(path)


def test_another_kind_of_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.tokens").write_text("hello")
    with pytest.raises(DataError, match="is not a token file: make one with `shardyard-worker data prepare`"):
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
        yield np.array([4])
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write token file .*a\.tokens.*No space left"):
        write_token_file(path, parts(), vocab_size=260, tokenizer="bytes")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["a.tokens"]
    assert map_tokens(path, read_header(path)).tolist() == [1, 2, 3]


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
