"""`data prepare`: rows into a directory of token files, on all cores of a Ray cluster, through Ray Data.

Every part is a task of its own: it reads its files, tokenizes them and writes one token file where all nodes see it.
The directory appears under its name at the end, with its index and its tokenizer, or not at all.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import ray
import ray.data
from pydantic import TypeAdapter

from workers.contract.data_config import MixtureData, RowData, TokenData, TokensData
from workers.data.corpus import Corpus, find_corpus
from workers.data.dataset import DataError
from workers.data.prepare import open_tokenizer, write_tokens
from workers.data.token_file import read_header
from workers.data.token_index import INDEX_NAME, TokenIndex, cut_into_parts, index_of, part_name
from workers.data.tokenizer import NAME, ByteTokenizer, Tokenizer
from workers.data.tokenizer_file import FILE_NAME, read_tokenizer
from workers.driver.local import NODE_ADDRESS, OBJECT_STORE_BYTES
from workers.errors import StorageError, WorkerError

PART_BYTES: Final = 256 << 20  # of source a part at least: a minute's work of a core


@contextmanager
def ray_for_preparing(address: str | None, home: Path) -> Iterator[None]:
    """Join the cluster at `address`, or start a Ray of our own in `home` (see `local_home`); leave it afterwards."""
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address=NODE_ADDRESS,
                _temp_dir=str(home),
                **quiet,
            )
        yield
    finally:
        ray.shutdown()


def prepare_tokens(data: TokenData, to: Path, *, part_bytes: int = PART_BYTES) -> Mapping[str, TokenIndex]:
    """Write the rows of `data` as token files into the directory `to`; return its index. Ray is up already.

    Each source of a mixture gets a directory of its own in `to`, named as it is, with one tokenizer for all; the key of
    anything else is "". A BPE is trained here first, by this process. `to` must be missing or empty; it has to lie, as
    the data has, where every node of the cluster sees it. The same rows give the same files on any cluster. Raises
    DataError and StorageError.
    """
    sections = _sections(data)
    with _appearing(to.absolute()) as draft:
        with tempfile.TemporaryDirectory() as scratch:
            tokenizer = open_tokenizer(data, Path(scratch))
        assert tokenizer is not None, "rows always have one"
        return {
            name: _prepare_one(section, tokenizer, draft / name, part_bytes=part_bytes)
            for name, section in sections.items()
        }


def _sections(data: TokenData) -> Mapping[str, RowData]:
    if isinstance(data, MixtureData):
        named: Mapping[str, RowData | TokensData] = {n: source.data for n, source in data.sources.items()}
    else:
        named = {"": data}
    rows = {name: section for name, section in named.items() if not isinstance(section, TokensData)}
    if len(rows) < len(named):
        raise DataError("data.kind tokens is prepared already: name the data that it was made of")
    return rows


def _prepare_one(data: RowData, tokenizer: Tokenizer, directory: Path, *, part_bytes: int) -> TokenIndex:
    directory.mkdir(exist_ok=True)
    (directory / FILE_NAME).write_text(tokenizer.to_json(), encoding="utf-8")
    num_parts = _write_parts(find_corpus(data), tokenizer, directory, part_bytes=part_bytes)
    headers = [read_header(directory / part_name(number)) for number in range(num_parts)]
    index = index_of(data.model_dump(mode="json"), headers)
    (directory / INDEX_NAME).write_text(index.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return index


def _write_parts(corpus: Corpus, tokenizer: Tokenizer, to: Path, *, part_bytes: int) -> int:
    """Write every part by a task of its own; return how many there are. Raises the first part's error."""
    files = [str(file.absolute()) for file in corpus.files]
    parts = cut_into_parts([file.stat().st_size for file in corpus.files], part_bytes=part_bytes)
    items = [
        {"path": str(to / part_name(number)), "files": files[part.start : part.stop]}
        for number, part in enumerate(parts)
    ]
    order = {
        "section": corpus.data.model_dump_json(),
        "root": str(corpus.root.absolute()),
        "tokenizer": tokenizer.name,
    }
    ray.data.DataContext.get_current().enable_progress_bars = False
    tasks = ray.data.from_items(items, override_num_blocks=len(items))
    said = {
        row["path"]: row["error"] for row in tasks.map(write_part, fn_kwargs=order, num_cpus=1).take_all()
    }
    for item in items:
        if error := said[item["path"]]:
            raise DataError(error)
    return len(items)


def write_part(row: dict[str, Any], *, section: str, root: str, tokenizer: str) -> dict[str, str]:
    """Write one part on whatever node this runs; what is wrong with it is the answer, since Ray would wrap an exception."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # a task has one core; the other parts have the others
    path = Path(row["path"])
    data: RowData = TypeAdapter(RowData).validate_json(section)
    corpus = Corpus(data=data, root=Path(root), files=[Path(file) for file in row["files"]])
    try:
        own = ByteTokenizer() if tokenizer == NAME else read_tokenizer(path.parent)
        write_tokens(corpus, own, path)
    except WorkerError as error:
        return {"path": row["path"], "error": str(error)}
    return {"path": row["path"], "error": ""}


@contextmanager
def _appearing(to: Path) -> Iterator[Path]:
    """Give a directory beside `to` that takes its name when all has gone well, and goes when it has not."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise DataError(f"{to} is there and not empty: name another directory, or remove it")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        try:
            yield draft
            draft.chmod(0o755)
            draft.replace(to)
        finally:
            rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"cannot write {to}: {error}") from error
