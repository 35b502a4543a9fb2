"""What a checkpoint holds whoever wrote it, and how it lies there; read with nothing but the format."""

from collections.abc import Mapping
from hashlib import sha256

import torch

from workers.checkpointing.chunks import open_checkpoint
from workers.contract.manifest import Manifest, StoredTensor


def read_whole(run_dir: str, name: str) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint, whole, each chunk verified."""
    with open_checkpoint(run_dir, name).open_all() as files:
        found = {}
        for key, stored in files.manifest.tensors.items():
            whole = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
            for chunk in stored.chunks:
                place = tuple(
                    slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
                )
                content = files.read(chunk)
                if content:
                    whole[place] = torch.frombuffer(content, dtype=whole.dtype).view(chunk.sizes)
            found[key] = whole
    return found


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one digest of names, dtypes, shapes and bits, in the order of the names."""
    total = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def layout_of(manifest: Manifest) -> str:
    """Return a digest of how tensors are cut over files: two checkpoints of one layout are read alike."""
    cuts = {name: _cuts(stored) for name, stored in sorted(manifest.tensors.items())}
    return sha256(repr(cuts).encode()).hexdigest()[:12]


def _cuts(stored: StoredTensor) -> list[tuple[object, ...]]:
    return sorted((chunk.file, chunk.start, chunk.offsets, chunk.sizes) for chunk in stored.chunks)
