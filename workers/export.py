"""Export: one published checkpoint -> a directory with its weights as safetensors, and what tells how to read them.

Streams chunk by chunk, each verified, so it holds one chunk in memory whatever the model's size. Needs no cluster and
no process group. Weights keep the dtype of the optimizer's master copy.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workers.checkpointing import catalog
from workers.checkpointing.chunks import ChunkFiles, open_checkpoint
from workers.checkpointing.storage import LocalStorage, MissingError
from workers.contract.config import TrainingConfig
from workers.contract.manifest import Manifest, StoredTensor
from workers.contract.rundir import tokenizer_file
from workers.errors import ConfigError, StorageError
from workers.export_shape import FILE_NAMES, shape_of

_EXPORTED_PREFIXES: Final = ("model.", "buffer.")  # a module's own state; the optimizer's stays behind

Bytes = npt.NDArray[np.uint8]

# torch's name -> (the name in safetensors, bytes per element)
_DTYPES: Final[Mapping[str, tuple[str, int]]] = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}


def export(run_dir: str, name: str | None, config: TrainingConfig, to: Path) -> Path:
    """Export checkpoint `name` (None: the newest published) to the directory `to`, and return it.

    `to` is there whole or not at all; an earlier export in it is replaced, anything else in it is left alone and
    refused with ConfigError. A checkpoint that is deleted meanwhile is still exported whole.
    Raises DamagedCheckpointError, StorageError.
    """
    with _open(run_dir, name) as files, _as_storage_error(to):
        _refuse_foreign(to)
        to.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        try:
            shape = shape_of(config, files.manifest, _tokenizer_of(run_dir))
            _write_weights(temporary / shape.weights_name, files, shape.rename)
            for text_name, text in shape.texts.items():
                _write_text(temporary / text_name, text)
            temporary.chmod(0o755)
            _put_in_place(temporary, to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return to


def _open(run_dir: str, name: str | None) -> ChunkFiles:
    if name is None:
        newest = catalog.choose(catalog.survey(run_dir))
        if newest is None:
            raise MissingError(f"{run_dir} holds no published checkpoint")
        name = str(newest.checkpoint)
    return open_checkpoint(run_dir, name).open_all()


def _tokenizer_of(run_dir: str) -> str | None:
    """The tokenizer that made the run's tokens: without it nobody can tell what an id means."""
    path = tokenizer_file(run_dir)
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _exported_names(manifest: Manifest, rename: Callable[[str], str | None]) -> dict[str, str]:
    """Name in the file -> name in the checkpoint, large elements first, so that every tensor is aligned."""
    names = {
        renamed: stored
        for prefix in _EXPORTED_PREFIXES
        for stored in manifest.tensors
        if stored.startswith(prefix) and (renamed := rename(stored.removeprefix(prefix))) is not None
    }
    return dict(sorted(names.items(), key=lambda pair: (-_element_bytes(manifest.tensors[pair[1]]), pair[0])))


def _element_bytes(tensor: StoredTensor) -> int:
    if tensor.dtype not in _DTYPES:
        raise ConfigError(f"safetensors has no dtype {tensor.dtype}")
    return _DTYPES[tensor.dtype][1]


def safetensors_header(
    manifest: Manifest, rename: Callable[[str], str | None] = lambda name: name
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the header of the file and, by name in the checkpoint, where each tensor's bytes lie in the file.

    Tied names go into the metadata, as safetensors' own `save_model` writes them.
    """
    names = _exported_names(manifest, rename)
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for alias, stored in manifest.aliases.items():
        if stored in names.values():
            entries["__metadata__"][_short(alias)] = _short(stored)
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name, stored in names.items():
        tensor = manifest.tensors[stored]
        begin, end = end, end + math.prod(tensor.shape) * _element_bytes(tensor)
        places[stored] = (begin, end)
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype][0],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: (begin + len(header), end + len(header)) for name, (begin, end) in places.items()}


def _short(name: str) -> str:
    for prefix in _EXPORTED_PREFIXES:
        name = name.removeprefix(prefix) if name.startswith(prefix) else name
    return name


def _write_weights(path: Path, files: ChunkFiles, rename: Callable[[str], str | None]) -> None:
    header, places = safetensors_header(files.manifest, rename)
    size = max((end for _, end in places.values()), default=len(header))
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk says so here, not as SIGBUS below
        mapped = np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))
        mapped[: len(header)] = np.frombuffer(header, dtype=np.uint8)
        for name, (begin, end) in places.items():
            _copy_tensor(files, files.manifest.tensors[name], mapped[begin:end])
        mapped.flush()
        os.fsync(file.fileno())


def _copy_tensor(files: ChunkFiles, tensor: StoredTensor, room: Bytes) -> None:
    """Put each chunk at its box; elements move as integers of their width, since numpy knows no bfloat16."""
    dtype = np.dtype(f"<u{_element_bytes(tensor)}")
    whole = room.view(dtype).reshape(tensor.shape)
    for chunk in tensor.chunks:
        box = tuple(
            slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        whole[box] = np.frombuffer(files.read(chunk), dtype=dtype).reshape(chunk.sizes)


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _refuse_foreign(to: Path) -> None:
    if to.exists() and (not to.is_dir() or {p.name for p in to.iterdir()} - FILE_NAMES):
        raise ConfigError(f"{to} holds something else than an export: name another directory")


def _put_in_place(temporary: Path, to: Path) -> None:
    if to.exists():
        retired = Path(mkdtemp(prefix=f".{to.name}-old-", dir=to.parent))
        to.replace(retired)
        temporary.replace(to)
        shutil.rmtree(retired)
    else:
        temporary.replace(to)
    LocalStorage(to.parent).sync_directory(".")


@contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"export to {path}: {error.strerror}") from error
