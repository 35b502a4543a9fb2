"""Files of text, tokenized once into a token file that is named by what they hold.

Each start reads the files through to know their digest (the standard library: 13 MB, 0.1 s); only a digest that the
cache does not know is tokenized. Ranks of a node that find it missing take turns by a file lock.
"""

import fcntl
import os
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

import xxhash

from workers.contract.config import TextData
from workers.data.dataset import DataError
from workers.data.token_file import SUFFIX, TokenHeader, read_header, write_token_file
from workers.data.tokenizer import NAME, VOCAB_SIZE, encode_document
from workers.errors import StorageError

STDLIB: Final = "python-stdlib"
# Installed packages differ from machine to machine, and tests are half of the library's bytes but poor reading.
_STDLIB_LEFT_OUT: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)


def prepare_text(data: TextData, cache_dir: Path) -> Path:
    """Return the token file of the text that `data` names, written into `cache_dir` if it is not there yet.

    Called on every rank, not collective; costs one reading of the files. Raises DataError when there is no such text,
    StorageError when the cache cannot be written.
    """
    files = collect_files(data)
    path = cache_dir / f"text-{NAME}-{_content_digest(files)}{SUFFIX}"
    if _is_token_file(path):
        return path
    with _locked(path):
        if not _is_token_file(path):
            for leftover in path.parent.glob(f".{path.name}.*.part"):  # of a writer that was killed
                leftover.unlink(missing_ok=True)
            tokenize_files(files, path)
    return path


def tokenize_files(files: Sequence[Path], path: Path) -> TokenHeader:
    """Write `files` as the token file `path`, each one a document. Raises DataError and StorageError."""
    documents = (encode_document(_read(file)) for file in files)
    return write_token_file(path, documents, vocab_size=VOCAB_SIZE, tokenizer=NAME)


def collect_files(data: TextData) -> Sequence[Path]:
    """Return the files that `data` names, by path relative to its root: the same order on every machine.

    `pattern` is matched from the right (`*.py`, `docs/*.md`). Links to directories are not followed. Raises DataError.
    """
    is_stdlib = data.path == STDLIB
    root = Path(sysconfig.get_path("stdlib") if is_stdlib else data.path).expanduser()
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise DataError(f"data.path: there is no file or directory {root.absolute()} on this node")
    left_out = _STDLIB_LEFT_OUT if is_stdlib else frozenset[str]()
    found = [name for name in _walk(root, left_out) if PurePath(name).match(data.pattern)]
    if not found:
        raise DataError(f"data.pattern: no file under {root.absolute()} matches {data.pattern!r}")
    return [root / name for name in sorted(found)]


def _walk(root: Path, left_out: frozenset[str]) -> Iterator[str]:
    """Yield regular files below `root` as relative POSIX paths, in no particular order."""
    for directory, subdirectories, names in os.walk(root, onerror=_refuse):
        subdirectories[:] = [name for name in subdirectories if name not in left_out]
        for name in names:
            path = Path(directory, name)
            if path.is_file():
                yield path.relative_to(root).as_posix()


def _refuse(error: OSError) -> None:
    raise DataError(f"data.path: cannot read {error.filename}: {error.strerror}") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"data.path: cannot read {file}: {error.strerror}") from error


def _content_digest(files: Sequence[Path]) -> str:
    """Digest of the contents in order; lengths go in, so that moving a file's end changes it. Names do not matter."""
    digest = xxhash.xxh3_128()
    for file in files:
        content = _read(file)
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _is_token_file(path: Path) -> bool:
    """Whether the cache has `path` whole; a file that something else cut or damaged is written anew."""
    try:
        read_header(path)
    except DataError:
        return False
    return True


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
