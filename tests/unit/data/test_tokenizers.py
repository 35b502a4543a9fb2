"""Tokenizers: bytes, one that is trained, one of somebody's file; and what an export carries of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from workers.contract.config import FileTokenizer, TextData, TokensData
from workers.data import DataError, load_dataset, open_tokenizer, vocab_size_of
from workers.data.token_file import open_token_file
from workers.data.tokenizer import BOS, TURN_BEGINS, TURN_ENDS, VOCAB_SIZE, ByteTokenizer, Tokenizer
from workers.data.tokenizer_file import TokenizerFile, read_tokenizer, train_bpe

TEXTS = ["low lower lowest", "new newer newest", "wide wider widest", "ä € 𝄞"]


def trained(vocab_size: int = 300) -> TokenizerFile:
    return TokenizerFile(train_bpe((text.encode() for text in TEXTS), vocab_size=vocab_size))


BOTH = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), trained()], ids=["bytes", "bpe"])


@BOTH
@given(text=st.text())
def test_what_is_encoded_comes_back_and_stays_below_the_size(tokenizer: Tokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text.encode(errors="replace")])
    assert tokenizer.decode(ids.tolist()) == text.encode(errors="replace").decode()
    assert all(0 <= token < tokenizer.vocab_size for token in ids.tolist())


@BOTH
def test_a_text_that_spells_a_mark_stays_text(tokenizer: Tokenizer) -> None:
    text = f"a {TURN_ENDS} <|bos|> b"
    (ids,) = tokenizer.encode([text.encode()])
    marks = {tokenizer.mark(mark) for mark in (TURN_BEGINS, TURN_ENDS, "<|bos|>")}
    assert None not in marks
    assert not marks & set(ids.tolist())
    assert tokenizer.decode(ids.tolist()) == text


@BOTH
def test_the_file_that_an_export_carries_means_the_same_outside(tokenizer: Tokenizer) -> None:
    outside = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    text = "def lowest(ä):\n    return '€'  # wider\t\x00\x7f"
    (ids,) = tokenizer.encode([text.encode()])
    assert outside.encode(text).ids == [tokenizer.document_mark, *ids.tolist()]
    assert outside.decode([tokenizer.document_mark, *ids.tolist()]) == text
    assert outside.token_to_id(TURN_ENDS) == tokenizer.mark(TURN_ENDS)
    assert TokenizerFile(tokenizer.to_json()).to_json() == tokenizer.to_json()


def test_the_file_of_the_bytes_gives_every_byte_its_number() -> None:
    again = TokenizerFile(ByteTokenizer().to_json())
    assert again.vocab_size == VOCAB_SIZE
    assert again.document_mark == BOS
    characters = "".join(chr(code) for code in range(0x250)) + "𝄞"
    (ids,) = again.encode([characters.encode()])
    assert ids.tolist() == list(characters.encode())


def test_a_bpe_learns_what_is_frequent_and_no_more_than_its_size() -> None:
    tokenizer = trained(270)
    (ids,) = tokenizer.encode([b"lowest newest widest"])
    assert len(ids) < len("lowest newest widest")
    assert tokenizer.vocab_size == 270


TRAIN = """
import sys
from workers.data.tokenizer_file import train_bpe
texts = [line.encode() for line in sys.stdin.read().split("|")]
sys.stdout.write(train_bpe(texts, vocab_size=400))
"""


def test_the_same_text_gives_the_same_bpe_in_any_order_on_any_number_of_threads() -> None:
    source = Path(json.__file__).parent
    texts = [file.read_text().replace("|", "") for file in sorted(source.glob("*.py"))]
    files = {
        subprocess.run(
            [sys.executable, "-c", TRAIN],
            input="|".join(order),
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for order, threads in [(texts, "1"), (texts[::-1], "3")]
    }
    assert len(files) == 1


def write_file(path: Path, *, before: str | None, added: list[str]) -> Path:
    """Somebody's own word-level tokenizer, with limits that it should not have kept."""
    words = ["[UNK]", "hello", "world", *added]
    tokenizer = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(added)
    if before is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{before} $A", special_tokens=[(before, words.index(before))]
        )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(
    ("before", "added", "mark"),
    [("[CLS]", ["[CLS]"], 3), (None, ["<|endoftext|>"], 3), (None, ["[odd]"], None)],
)
def test_a_tokenizer_file_begins_documents_by_its_own_rules(
    tmp_path: Path, before: str | None, added: list[str], mark: int | None
) -> None:
    write_file(tmp_path / "tokenizer.json", before=before, added=added)
    tokenizer = read_tokenizer(tmp_path)  # the directory holds one
    assert tokenizer.document_mark == mark
    (ids,) = tokenizer.encode([b"hello world hello"])
    assert ids.tolist() == [1, 2, 1]  # neither cut nor filled up


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{}", "this is no tokenizer.json"), (b"\xff", "is no text"), (None, "No such file")],
)
def test_what_is_no_tokenizer_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"data\.tokenizer: .*mine\.json.*{said}"):
        read_tokenizer(path)


def text_data(root: Path, tokenizer: object, **fields: object) -> TextData:
    return TextData.model_validate(
        {
            "kind": "text",
            "path": str(root),
            "pattern": "*.txt",
            "tokenizer": tokenizer,
            "seq_len": 4,
            **fields,
        }
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    root.mkdir()
    for number, text in enumerate(TEXTS * 5):
        (root / f"{number:02d}.txt").write_text(text)
    return root


def test_a_bpe_is_trained_once_on_what_the_job_reads_and_kept_with_its_tokens(
    corpus: Path, tmp_path: Path
) -> None:
    cache, data = tmp_path / "cache", text_data(corpus, {"kind": "bpe", "vocab_size": 300})
    dataset = load_dataset(data, cache)
    made = {file.name: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert sorted(name.rpartition(".")[2] for name in made) == ["json", "lock", "lock", "tokens"]
    assert load_dataset(data, cache).digest == dataset.digest
    assert {file.name: file.stat().st_mtime_ns for file in cache.iterdir()} == made

    tokenizer = open_tokenizer(data, cache)
    assert tokenizer is not None
    (tokens,) = cache.glob("*.tokens")
    file = open_token_file(tokens)
    assert file.header.tokenizer == tokenizer.name
    assert file.header.document_mark == tokenizer.document_mark == int(file.ids[0])
    assert tokenizer.decode(file.ids.tolist()) == "".join(TEXTS * 5)
    assert vocab_size_of(data) == 300 >= dataset.vocab_size


def test_another_text_or_size_trains_another_bpe(corpus: Path, tmp_path: Path) -> None:
    def name(size: int) -> str:
        tokenizer = open_tokenizer(text_data(corpus, {"kind": "bpe", "vocab_size": size}), tmp_path / "cache")
        assert tokenizer is not None
        return tokenizer.name

    names = {name(300), name(280)}
    (corpus / "00.txt").write_text("other other other other other")
    names.add(name(300))
    assert len(names) == 3


def test_a_tokenizer_file_tokenizes_a_job_and_its_size_is_known_before(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(trained(280).to_json())
    data = text_data(corpus, str(tmp_path / "mine.json"))
    assert isinstance(data.tokenizer, FileTokenizer)
    assert vocab_size_of(data) == 280
    dataset = load_dataset(data, tmp_path / "cache")
    assert dataset.vocab_size == 280


def test_the_tokenizer_of_token_files_lies_beside_them_and_has_to_be_theirs(
    corpus: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    data = text_data(corpus, {"kind": "bpe", "vocab_size": 300})
    load_dataset(data, cache)
    tokenizer = open_tokenizer(data, cache)
    assert tokenizer is not None
    prepared = TokensData(kind="tokens", path=str(cache))
    assert open_tokenizer(prepared, tmp_path / "unused") is None
    (cache / "tokenizer.json").write_text(tokenizer.to_json())
    beside = open_tokenizer(prepared, tmp_path / "unused")
    assert beside is not None
    assert beside.name == tokenizer.name
    (cache / "tokenizer.json").write_text(trained(280).to_json())
    with pytest.raises(DataError, match=r"tokenizer\.json is json-.*but the tokens beside it are of json-"):
        open_tokenizer(prepared, tmp_path / "unused")
