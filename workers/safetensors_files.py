"""Tensors of a checkpoint as safetensors: one file, or several of a capped size and the index that transformers reads.

The format: eight bytes of length, a JSON header with dtype, shape and byte range of each tensor, then the bytes.
Source: https://github.com/huggingface/safetensors#format.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workers.checkpointing.chunks import ChunkFiles
from workers.contract.manifest import Manifest, StoredTensor
from workers.errors import ConfigError

Names = Mapping[str, str]  # name in the file -> name in the checkpoint

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


def cut_into_files(
    manifest: Manifest, names: Names, file_name: str, *, max_file_bytes: int
) -> dict[str, dict[str, str]]:
    """Return which tensors go into which file: `file_name` alone, or `model-00001-of-00003.safetensors` and so on.

    A file holds at most `max_file_bytes` of weights, unless a single tensor is larger: none is cut. Pure.
    """
    parts: list[dict[str, str]] = [{}]
    room = max_file_bytes
    for name, stored in sorted(names.items()):
        num_bytes = _num_bytes(manifest.tensors[stored])
        if num_bytes > room and parts[-1]:
            parts.append({})
            room = max_file_bytes
        parts[-1][name] = stored
        room -= num_bytes
    if len(parts) == 1:
        return {file_name: parts[0]}
    stem, _, suffix = file_name.rpartition(".")
    return {
        f"{stem}-{number:05d}-of-{len(parts):05d}.{suffix}": part
        for number, part in enumerate(parts, start=1)
    }


def index_of(manifest: Manifest, parts: Mapping[str, Names], file_name: str) -> dict[str, str]:
    """Return the index of several files, as file name and content. Pure."""
    places = {name: part_name for part_name, part in parts.items() for name in part}
    total = sum(_num_bytes(manifest.tensors[stored]) for part in parts.values() for stored in part.values())
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    return {f"{file_name}.index.json": json.dumps(content, indent=2) + "\n"}


def is_part_of(name: str, file_name: str) -> bool:
    """Whether a file is one of several that `file_name` was cut into, or their index."""
    stem, _, suffix = file_name.rpartition(".")
    part = re.fullmatch(rf"{re.escape(stem)}-\d{{5}}-of-\d{{5}}\.{re.escape(suffix)}", name)
    return part is not None or name == f"{file_name}.index.json"


def write_file(path: Path, files: ChunkFiles, names: Names, *, aliases: Mapping[str, str]) -> None:
    """Write the named tensors, chunk by chunk, each verified; durable on return. Holds one chunk in memory.

    `aliases` maps tied names to names in the file; they go into the metadata, as safetensors' own `save_model` writes
    them. Raises DamagedCheckpointError, StorageError, OSError.
    """
    header, places = _header(files.manifest, names, aliases)
    size = max((end for _, end in places.values()), default=len(header))
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk says so here, not as SIGBUS below
        mapped = np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))
        mapped[: len(header)] = np.frombuffer(header, dtype=np.uint8)
        for name, (begin, end) in places.items():
            _copy_tensor(files, files.manifest.tensors[name], mapped[begin:end])
        mapped.flush()
        os.fsync(file.fileno())


def _header(
    manifest: Manifest, names: Names, aliases: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the header and, by name in the checkpoint, where each tensor's bytes lie in the file."""
    told = {alias: name for alias, name in aliases.items() if name in names}
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"} | told}
    places: dict[str, tuple[int, int]] = {}
    end = 0
    # large elements first, so that every tensor is aligned
    for name, stored in sorted(
        names.items(), key=lambda pair: (-_element(manifest.tensors[pair[1]])[1], pair[0])
    ):
        tensor = manifest.tensors[stored]
        begin, end = end, end + _num_bytes(tensor)
        places[stored] = (begin, end)
        entries[name] = {
            "dtype": _element(tensor)[0],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: (begin + len(header), end + len(header)) for name, (begin, end) in places.items()}


def _element(tensor: StoredTensor) -> tuple[str, int]:
    """Return what safetensors calls the dtype, and the bytes of an element."""
    if tensor.dtype not in _DTYPES:
        raise ConfigError(f"safetensors has no dtype {tensor.dtype}")
    return _DTYPES[tensor.dtype]


def _num_bytes(tensor: StoredTensor) -> int:
    return math.prod(tensor.shape) * _element(tensor)[1]


def _copy_tensor(files: ChunkFiles, tensor: StoredTensor, room: npt.NDArray[np.uint8]) -> None:
    """Put each chunk at its box; elements move as integers of their width, since numpy knows no bfloat16."""
    dtype = np.dtype(f"<u{_element(tensor)[1]}")
    whole = room.view(dtype).reshape(tensor.shape)
    for chunk in tensor.chunks:
        box = tuple(
            slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        whole[box] = np.frombuffer(files.read(chunk), dtype=dtype).reshape(chunk.sizes)
