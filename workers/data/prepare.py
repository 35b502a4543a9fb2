"""Text tokenized once: token files and trained tokenizers in a cache, named by what they were made of.

Each start reads the files through to know their digest; only a digest that the cache does not know is tokenized. Ranks
of a node that find it missing take turns by a file lock.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never

import xxhash

from workers.contract.data_config import (
    BpeTokenizer,
    BytesTokenizer,
    FileTokenizer,
    MixtureData,
    RowData,
    TokenData,
    TokensData,
)
from workers.data.corpus import Corpus, find_corpus
from workers.data.dataset import DataError, Dataset
from workers.data.encode import encode_rows, texts_of
from workers.data.mixture import Mixture
from workers.data.rows import read_rows
from workers.data.token_dataset import TokenDataset
from workers.data.token_file import SUFFIX, TokenHeader, read_header, write_token_file
from workers.data.token_index import token_files
from workers.data.tokenizer import NAME, VOCAB_SIZE, ByteTokenizer, Tokenizer
from workers.data.tokenizer_file import FILE_NAME, TokenizerFile, read_tokenizer, train_bpe
from workers.errors import StorageError


def prepare(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path) -> Path:
    """Return the token file of `corpus`, written into `cache_dir` if it is not there yet.

    Called on every rank, not collective; costs one reading of the files. Raises DataError and StorageError.
    """
    path = cache_dir / f"{corpus.data.kind}-{tokenizer.name}-{_row_digest([corpus])}{SUFFIX}"
    _make_once(path, _is_token_file, lambda: write_tokens(corpus, tokenizer, path))
    return path


def write_tokens(corpus: Corpus, tokenizer: Tokenizer, path: Path) -> TokenHeader:
    """Write the rows of `corpus` as the token file `path`. Raises DataError and StorageError."""
    rows = read_rows(corpus.data, corpus.root, corpus.files)
    return write_token_file(
        path,
        encode_rows(rows, tokenizer),
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer.name,
        document_mark=tokenizer.document_mark,
    )


def open_tokenizer(data: TokenData, cache_dir: Path) -> Tokenizer | None:
    """Return the tokenizer of a job's data; None where token files came without one.

    A BPE is trained on all rows that the job reads, the first time, and kept in `cache_dir`. Not collective; every rank
    may call it. Raises DataError and StorageError.
    """
    sections = [source.data for source in data.sources.values()] if isinstance(data, MixtureData) else [data]
    corpora = [find_corpus(section) for section in sections if not isinstance(section, TokensData)]
    if not corpora:
        prepared = [section for section in sections if isinstance(section, TokensData)]
        return _tokenizer_of_files(Path(prepared[0].path))
    chosen = corpora[0].data.tokenizer
    match chosen:
        case BytesTokenizer():
            return ByteTokenizer()
        case FileTokenizer():
            return read_tokenizer(Path(chosen.path))
        case BpeTokenizer():
            return _trained(corpora, chosen.vocab_size, cache_dir)
        case _:
            assert_never(chosen)


def tokenizer_json(dataset: Dataset) -> str | None:
    """Return the tokenizer of `dataset` as a run keeps it, where it has one: later the data may be gone, or others."""
    if isinstance(dataset, TokenDataset | Mixture) and dataset.tokenizer is not None:
        return dataset.tokenizer.to_json()
    return None


def vocab_size_of(data: TokenData) -> int:
    """Return how many ids a model of this data needs, before any of it is tokenized. Raises DataError."""
    match data:
        case MixtureData():
            return max(vocab_size_of(source.data) for source in data.sources.values())
        case TokensData():
            return max(read_header(path).vocab_size for path in token_files(Path(data.path)))
        case _:
            return _vocab_size(data)


def _vocab_size(data: RowData) -> int:
    match data.tokenizer:
        case BytesTokenizer():
            return VOCAB_SIZE
        case BpeTokenizer():
            return data.tokenizer.vocab_size
        case FileTokenizer():
            return read_tokenizer(Path(data.tokenizer.path)).vocab_size
        case _:
            assert_never(data.tokenizer)


def _trained(corpora: Sequence[Corpus], vocab_size: int, cache_dir: Path) -> TokenizerFile:
    path = cache_dir / f"bpe-{vocab_size}-{_row_digest(corpora)}.json"

    def train() -> None:
        texts = (
            text for corpus in corpora for text in texts_of(read_rows(corpus.data, corpus.root, corpus.files))
        )
        _write_text(path, train_bpe(texts, vocab_size=vocab_size))

    _make_once(path, Path.is_file, train)
    return read_tokenizer(path)


def _tokenizer_of_files(path: Path) -> Tokenizer | None:
    """The tokenizer that lies beside token files, if their ids are of it."""
    name = read_header(token_files(path)[0]).tokenizer
    if name == NAME:
        return ByteTokenizer()
    beside = (path if path.is_dir() else path.parent).expanduser() / FILE_NAME
    if not beside.is_file():
        return None
    tokenizer = read_tokenizer(beside)
    if tokenizer.name != name:
        raise DataError(f"data.path: {beside} is {tokenizer.name}, but the tokens beside it are of {name}")
    return tokenizer


def _row_digest(corpora: Sequence[Corpus]) -> str:
    """Name the rows of `corpora`: the content of their files, and how rows are read from them."""
    how = [
        (corpus.data.model_dump(include={"kind", "format", "key", "column"}), corpus.digest())
        for corpus in corpora
    ]
    return xxhash.xxh3_128_hexdigest(json.dumps(how).encode())


def _is_token_file(path: Path) -> bool:
    """Whether the cache has `path` whole; a file that something else cut or damaged is written anew."""
    try:
        read_header(path)
    except DataError:
        return False
    return True


def _make_once(path: Path, is_there: Callable[[Path], bool], make: Callable[[], object]) -> None:
    """Call `make` unless `path` is there; of several processes at once one makes it, and the others wait."""
    if is_there(path):
        return
    with _locked(path):
        if not is_there(path):
            for leftover in path.parent.glob(f".{path.name}.*.part"):  # of a writer that was killed
                leftover.unlink(missing_ok=True)
            make()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock beside `path`: the kernel drops it with its holder, however that one ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("ab")
    except OSError as error:
        raise StorageError(f"cannot write the data cache {path.parent}: {error}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_text(path: Path, text: str) -> None:
    """Write a small file that is there whole or not at all. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error
