"""The bytes of `manifest.json`: the manifest as JSON, sealed by a digest over all bytes before it. Knows no torch.

The seal is the last key, so the file stays plain JSON, and one flipped byte anywhere is found.
"""

import math
import re
from typing import Final

import xxhash
from pydantic import ValidationError

from workers.contract.manifest import FORMAT_VERSION, Manifest, StoredTensor

_SEAL: Final = re.compile(rb',"digest":"(xxh3_128:[0-9a-f]{32})"}\n\Z')
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


class ManifestError(ValueError):
    """These bytes are not a manifest that this version wrote; the message says why."""


def digest(content: bytes | bytearray | memoryview) -> str:
    """Return the digest of stored bytes, in the form that manifests hold."""
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"


def encode(manifest: Manifest) -> bytes:
    """Return the sealed bytes of a manifest."""
    body = manifest.to_json().encode()
    assert body.endswith(b"}")
    return body[:-1] + f',"digest":"{digest(body)}"}}\n'.encode()


def decode(content: bytes) -> Manifest:
    """Read what `encode` wrote; raises ManifestError with the reason on anything else."""
    seal = _SEAL.search(content)
    if seal is None:
        raise ManifestError("cut short or altered: no seal at its end")
    body = content[: seal.start()] + b"}"
    if digest(body).encode() != seal[1]:
        raise ManifestError("altered: its digest does not match")
    try:
        manifest = Manifest.from_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise ManifestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if manifest.version > FORMAT_VERSION:
        raise ManifestError(
            f"format version {manifest.version} is newer than {FORMAT_VERSION}; read it with a newer shardyard"
        )
    return manifest


def contradiction(manifest: Manifest) -> str | None:
    """Say what the manifest itself gets wrong: a gap, a chunk outside its file or tensor, half an optimizer state."""
    for name in manifest.files:
        if not _SAFE_NAME.match(name):
            return f"file name {name!r} is not a plain name"
    for name, tensor in manifest.tensors.items():
        problem = _tensor_problem(tensor, manifest)
        if problem:
            return f"tensor {name}: {problem}"
    return _optimizer_problem(manifest)


def _tensor_problem(tensor: StoredTensor, manifest: Manifest) -> str | None:
    for chunk in tensor.chunks:
        if chunk.start < 0 or chunk.start + chunk.length > manifest.files.get(chunk.file, -1):
            return f"a chunk lies outside {chunk.file}"
        if not len(chunk.offsets) == len(chunk.sizes) == len(tensor.shape):
            return "a chunk has other dimensions than its tensor"
        boxes = zip(chunk.offsets, chunk.sizes, tensor.shape, strict=True)
        if any(offset < 0 or size < 0 or offset + size > extent for offset, size, extent in boxes):
            return "a chunk lies outside the tensor"
    stored = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
    if stored != math.prod(tensor.shape):
        return f"{stored} of {math.prod(tensor.shape)} elements are stored"
    return None


def _optimizer_problem(manifest: Manifest) -> str | None:
    """One optimizer trains all parameters, so each that has state has the same kinds of it."""
    kinds: dict[str, set[str]] = {}
    for name in manifest.tensors:
        if name.startswith("optimizer."):
            parameter, _, kind = name.removeprefix("optimizer.").rpartition(".")
            kinds.setdefault(parameter, set()).add(kind)
    all_kinds = set().union(*kinds.values())
    for parameter, found in sorted(kinds.items()):
        if found != all_kinds:
            return f"parameter {parameter} lacks its {', '.join(sorted(all_kinds - found))}"
    return None
