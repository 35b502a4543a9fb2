"""JSON lines, chats and Parquet: rows that are good, rows that are not, and what becomes of either."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workers.contract.config import JsonlData, ParquetData
from workers.data import DataError, TokenDataset, load_dataset, order_of, take_inventory
from workers.data.chat import encode_chat
from workers.data.corpus import find_corpus
from workers.data.document import BadRow, ChatRow, Message, Row, TextRow
from workers.data.order import sample_order
from workers.data.rows import parse_line, read_rows
from workers.data.token_file import open_token_file
from workers.data.tokenizer import BOS, TURN_BEGINS, TURN_ENDS, ByteTokenizer
from workers.data.tokenizer_file import TokenizerFile, train_bpe


def jsonl(path: Path, **fields: object) -> JsonlData:
    return JsonlData.model_validate({"kind": "jsonl", "path": str(path), "seq_len": 4, **fields})


def rows_of(data: JsonlData | ParquetData) -> list[Row]:
    corpus = find_corpus(data)
    return list(read_rows(data, corpus.root, corpus.files))


def test_each_line_is_a_document_and_empty_lines_are_none(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"text": "two"}')
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "", "more": 1}\n')
    assert rows_of(jsonl(tmp_path)) == [TextRow(text=b"one"), TextRow(text=b""), TextRow(text=b"two")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": ', "no JSON: "),
        (b"\xff\xfe", "no JSON: "),
        (b"[" * 100_000, "no JSON: "),
        (b"3", "no object with the key 'text'"),
        (b'{"txet": "a"}', "no object with the key 'text'"),
        (b'{"text": null}', "text is NoneType, not text"),
        (b'{"text": ["a"]}', "text is list, not text"),
    ],
)
def test_a_line_that_is_no_row_is_told_with_its_place(line: bytes, reason: str) -> None:
    """B035."""
    row = parse_line(line, jsonl(Path("/x")), place="a.jsonl:7")
    assert isinstance(row, BadRow)
    assert row.place == "a.jsonl:7"
    assert row.reason.startswith(reason)


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ("hello", "a chat is a list"),
        ([["user", "hello"]], "a chat is a list"),
        ([{"role": "user", "content": "hello"}], "no turn of the role 'assistant'"),
        ([{"role": "assistant", "content": [{"type": "text"}]}], "content is list, not text"),
        ([{"content": "hello"}], "role is NoneType, not text"),
        ([], "no turn of the role 'assistant'"),
    ],
)
def test_a_chat_that_is_none_is_told(chat: object, reason: str) -> None:
    """B035."""
    row = parse_line(json.dumps({"messages": chat}).encode(), jsonl(Path("/x"), format="chat"), place="a:1")
    assert isinstance(row, BadRow)
    assert row.reason.startswith(reason)


def test_a_lone_surrogate_is_text_all_the_same() -> None:
    assert parse_line(b'{"text": "a\\ud800"}', jsonl(Path("/x")), place="a:1") == TextRow(text=b"a?")


def test_another_key_can_be_named() -> None:
    data = jsonl(Path("/x"), key="dialog", format="chat")
    turns = [{"role": "assistant", "content": "hi", "extra": 1}]
    row = parse_line(json.dumps({"dialog": turns}).encode(), data, place="a:1")
    assert row == ChatRow(messages=(Message(role="assistant", content="hi"),))


CHAT = (
    Message(role="system", content="Be kind."),
    Message(role="user", content="Hi <|im_end|>"),
    Message(role="assistant", content="Hello!"),
    Message(role="user", content=TURN_ENDS),
    Message(role="assistant", content=""),
)


@pytest.mark.parametrize(
    "tokenizer",
    [ByteTokenizer(), TokenizerFile(train_bpe([b"Hello! Be kind."], vocab_size=270))],
    ids=["bytes", "bpe"],
)
def test_of_a_chat_the_answers_are_learnt_and_their_ends(tokenizer: ByteTokenizer | TokenizerFile) -> None:
    document = encode_chat(CHAT, tokenizer)
    assert document.is_learnt is not None
    learnt = document.ids[document.is_learnt].tolist()
    end = tokenizer.mark(TURN_ENDS)
    assert tokenizer.decode(learnt) == "Hello!"
    assert [token for token in learnt if token == end] == [end, end]
    assert learnt[-1] == end
    begin = tokenizer.mark(TURN_BEGINS)
    assert document.ids.tolist().count(begin) == len(CHAT)
    assert document.ids.tolist().count(end) == len(CHAT)  # what a user spells is not one
    assert document.ids[0] == tokenizer.document_mark
    spoken = "".join(f"{turn.role}\n{turn.content}\n" for turn in CHAT)
    assert tokenizer.decode(document.ids.tolist()) == spoken


def test_a_vocabulary_without_the_marks_spells_them() -> None:
    class Plain(ByteTokenizer):
        document_mark = None

        def mark(self, text: str) -> None:
            return None

    document = encode_chat(CHAT[1:3], Plain())
    assert bytes(document.ids.tolist()) == (
        b"<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    )
    assert document.is_learnt is not None
    assert bytes(document.ids[document.is_learnt].tolist()) == b"Hello!<|im_end|>"


def test_the_labels_of_a_chat_are_counted_on_answers_alone(tmp_path: Path) -> None:
    turns = [{"role": turn.role, "content": turn.content} for turn in CHAT]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    dataset = load_dataset(jsonl(tmp_path, format="chat"), tmp_path / "cache")
    batch = dataset.batch(range(len(dataset)))
    counted = batch["labels"][batch["labels"] != -100].tolist()
    assert bytes(token for token in counted if token < BOS) == b"Hello!"
    assert batch["labels"].shape == batch["tokens"].shape


def write_parquet(
    path: Path, column: Sequence[object], kind: pa.DataType | None = None, name: str = "text"
) -> None:
    pq.write_table(pa.table({name: pa.array(column, type=kind), "other": range(len(column))}), path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_each_row_of_a_column_is_a_document(tmp_path: Path, kind: pa.DataType) -> None:
    write_parquet(tmp_path / "a.parquet", ["one", None, "ä"], kind)
    data = ParquetData.model_validate({"kind": "parquet", "path": str(tmp_path)})
    assert rows_of(data) == [
        TextRow(text=b"one"),
        BadRow(place="a.parquet: row 1", reason="text is null"),
        TextRow(text="ä".encode()),
    ]


def test_a_parquet_file_that_cannot_be_read_as_text_is_named(tmp_path: Path) -> None:
    data = ParquetData.model_validate({"kind": "parquet", "path": str(tmp_path)})
    write_parquet(tmp_path / "a.parquet", ["one"], name="body")
    with pytest.raises(
        DataError, match=r"data\.column: .*a\.parquet has no column 'text'; it has body, other"
    ):
        rows_of(data)
    write_parquet(tmp_path / "a.parquet", [1, 2])
    with pytest.raises(DataError, match=r"data\.column: 'text' of .*a\.parquet is int64, not text"):
        rows_of(data)
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"data\.path: .*a\.parquet is no Parquet file"):
        rows_of(data)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines))


def good(number: int) -> str:
    return json.dumps({"text": f"{number:03d}"})  # and its mark: four tokens, a sample but for the last


def test_bad_rows_are_left_out_before_samples_get_numbers_so_ranks_keep_step(tmp_path: Path) -> None:
    """B031, B035: every rank sees the same count of samples, and the rows that are missing are counted and named."""
    lines = [good(number) for number in range(13)]
    write_lines(tmp_path / "a.jsonl", [*lines[:2], '{"text": 5}', *lines[2:], "{", "{}"])
    dataset = load_dataset(jsonl(tmp_path), tmp_path / "cache")
    assert isinstance(dataset, TokenDataset)
    assert len(dataset) == 12
    assert dataset.num_bad_rows == 3
    assert dataset.bad_rows[0] == "a.jsonl:3: text is int, not text"
    found = take_inventory(dataset, order_of(dataset, seed=0, validation_ratio=0.1))
    assert (found.samples, found.held_out, found.bad_rows, found.dropped_tokens) == (12, 1, 3, 3)
    assert str(found) == (
        "12 samples; 1 of them held out; 3 tokens at ends of files left over; "
        "3 bad row(s) left out, the first: a.jsonl:3: text is int, not text"
    )

    write_lines(tmp_path / "a.jsonl", lines)
    whole = load_dataset(jsonl(tmp_path), tmp_path / "cache")
    assert whole.digest == dataset.digest  # the same samples: nothing else was touched
    order = sample_order([len(dataset)], seed=0)
    by_rank = [order.ids(range(rank, 24, 3)).tolist() for rank in range(3)]
    assert [len(ids) for ids in by_rank] == [8, 8, 8]
    assert np.bincount(np.concatenate(by_rank)).tolist() == [2] * 12


def test_a_file_of_bad_rows_only_is_refused_with_the_first(tmp_path: Path) -> None:
    """B035."""
    write_lines(tmp_path / "a.jsonl", ["{", "{}"])
    with pytest.raises(
        DataError, match=r"0 tokens .*; 2 bad rows were left out, the first: a\.jsonl:1: no JSON"
    ):
        load_dataset(jsonl(tmp_path), tmp_path / "cache")


def test_another_key_or_format_of_the_same_file_is_another_cache_entry(tmp_path: Path) -> None:
    turns = [{"role": "assistant", "content": "abcdefgh"}]
    write_lines(
        tmp_path / "a.jsonl", [json.dumps({"text": "12345678", "body": "87654321", "messages": turns})]
    )
    sections = [jsonl(tmp_path), jsonl(tmp_path, key="body"), jsonl(tmp_path, format="chat")]
    assert len({load_dataset(section, tmp_path / "cache").digest for section in sections}) == 3
    assert len(list((tmp_path / "cache").glob("*.tokens"))) == 3


def test_parquet_rows_become_the_same_documents_as_lines(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [good(number) for number in range(9)])
    write_parquet(tmp_path / "a.parquet", [f"{number:03d}" for number in range(9)])
    data = ParquetData.model_validate({"kind": "parquet", "path": str(tmp_path), "seq_len": 4})
    cache = tmp_path / "cache"
    assert load_dataset(data, cache).digest == load_dataset(jsonl(tmp_path), cache).digest
    files = [open_token_file(path) for path in cache.glob("*.tokens")]
    assert [file.header.num_documents for file in files] == [9, 9]
