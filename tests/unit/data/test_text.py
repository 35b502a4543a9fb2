"""Text into tokens: which files, the cache, several ranks at once, a writer that is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.contract.config import TextData, TokensData
from workers.data import DataError, load_dataset
from workers.data.corpus import find_corpus
from workers.data.prepare import prepare, write_tokens
from workers.data.token_file import open_token_file, read_header
from workers.data.tokenizer import BOS, VOCAB_SIZE, ByteTokenizer, decode
from workers.errors import StorageError


def text(path: Path | str, **fields: object) -> TextData:
    return TextData.model_validate({"kind": "text", "path": str(path), **fields})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    (root / "pkg").mkdir(parents=True)
    (root / "b.py").write_text("b = 2\n")
    (root / "a.py").write_bytes("ä\n".encode())
    (root / "pkg" / "c.py").write_text("")
    (root / "notes.txt").write_text("not python")
    return root


def collect_files(data: TextData) -> list[Path]:
    return list(find_corpus(data).files)


def prepare_text(data: TextData, cache: Path) -> Path:
    return prepare(find_corpus(data), ByteTokenizer(), cache)


def tokens_of(path: Path) -> list[int]:
    return open_token_file(path).ids.tolist()


def test_files_become_bytes_in_the_order_of_their_names_each_after_a_mark(
    corpus: Path, tmp_path: Path
) -> None:
    path = prepare_text(text(corpus), tmp_path / "cache")
    assert tokens_of(path) == [BOS, *"ä\n".encode(), BOS, *b"b = 2\n", BOS]
    assert read_header(path).vocab_size == VOCAB_SIZE
    assert decode(tokens_of(path)) == "ä\nb = 2\n"


def test_prepared_files_give_the_same_samples_as_the_text_itself(corpus: Path, tmp_path: Path) -> None:
    written = write_tokens(find_corpus(text(corpus)), ByteTokenizer(), tmp_path / "out" / "corpus.tokens")
    assert written == read_header(prepare_text(text(corpus), tmp_path / "cache"))
    prepared = TokensData(kind="tokens", path=str(tmp_path / "out"), seq_len=4)
    assert load_dataset(prepared, tmp_path).digest == load_dataset(text(corpus, seq_len=4), tmp_path).digest


def test_a_pattern_may_name_a_directory(corpus: Path) -> None:
    found = collect_files(text(corpus, pattern="pkg/*.py"))
    assert [file.name for file in found] == ["c.py"]


def test_one_file_is_taken_whatever_the_pattern(corpus: Path) -> None:
    assert collect_files(text(corpus / "notes.txt")) == [corpus / "notes.txt"]


def test_what_is_no_regular_file_is_passed_over(corpus: Path) -> None:
    os.mkfifo(corpus / "pipe.py")
    (corpus / "dangling.py").symlink_to(corpus / "nowhere")
    (corpus / "directory.py").mkdir()
    assert [file.name for file in collect_files(text(corpus))] == ["a.py", "b.py", "c.py"]


def test_text_is_tokenized_once_and_again_when_it_changes(corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare_text(text(corpus), cache)
    written = first.stat().st_mtime_ns, first.stat().st_ino
    assert prepare_text(text(corpus), cache) == first
    assert (first.stat().st_mtime_ns, first.stat().st_ino) == written
    (corpus / "b.py").write_text("b = 3\n")
    second = prepare_text(text(corpus), cache)
    assert second != first
    assert tokens_of(second) != tokens_of(first)


def test_moving_bytes_from_one_file_to_the_next_is_a_change(corpus: Path, tmp_path: Path) -> None:
    first = prepare_text(text(corpus), tmp_path / "cache")
    (corpus / "a.py").write_bytes("ä\nb".encode())
    (corpus / "b.py").write_text(" = 2\n")
    assert prepare_text(text(corpus), tmp_path / "cache") != first


def test_a_damaged_cache_file_is_written_anew(corpus: Path, tmp_path: Path) -> None:
    path = prepare_text(text(corpus), tmp_path / "cache")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert prepare_text(text(corpus), tmp_path / "cache").read_bytes() == whole


PREPARE = """
import os, signal, sys
from pathlib import Path
from workers.contract.config import TextData
from workers.data.corpus import find_corpus
from workers.data.prepare import prepare
from workers.data.tokenizer import ByteTokenizer

class Tokenizer(ByteTokenizer):
    def encode(self, texts):
        if sys.argv[3] == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(texts)

print(prepare(find_corpus(TextData(kind="text", path=sys.argv[1])), Tokenizer(), Path(sys.argv[2])))
"""


def start(corpus: Path, cache: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(corpus), str(cache), how], stdout=subprocess.PIPE, text=True
    )


def test_ranks_that_start_at_once_share_one_file_even_after_one_was_killed(
    corpus: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    victim = start(corpus, cache, "dies")
    assert victim.wait(timeout=120) == -9
    victim.communicate()
    assert [file for file in cache.iterdir() if file.suffix == ".tokens"] == []
    assert [file for file in cache.iterdir() if file.suffix == ".part"] != []

    ranks = [start(corpus, cache, "lives") for _ in range(3)]
    answers = {rank.communicate(timeout=120)[0].strip() for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    (path,) = answers
    assert tokens_of(Path(path)) == [BOS, *"ä\n".encode(), BOS, *b"b = 2\n", BOS]
    assert sorted(file.suffix for file in cache.iterdir()) == [".lock", ".tokens"]


def test_the_standard_library_is_always_there_without_tests_and_installed_packages() -> None:
    files = collect_files(text("python-stdlib"))
    assert len(files) > 300
    assert {"argparse.py", "dataclasses.py"} <= {file.name for file in files}
    assert not {"site-packages", "dist-packages", "test", "tests"} & {part for f in files for part in f.parts}


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.path: there is no file or directory .*/nowhere on this node"):
        prepare_text(text(tmp_path / "nowhere"), tmp_path / "cache")


def test_a_pattern_that_matches_nothing_is_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.pattern: no file under .*corpus matches '\*\.rs'"):
        prepare_text(text(corpus, pattern="*.rs"), tmp_path / "cache")


def test_too_little_text_for_one_sample_is_refused_with_both_numbers(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"12 tokens in 1 file\(s\) are fewer than one sample needs, 257"):
        load_dataset(text(corpus), tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_a_storage_error(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(StorageError, match="cannot write the data cache"):
        prepare_text(text(corpus), tmp_path / "cache")
