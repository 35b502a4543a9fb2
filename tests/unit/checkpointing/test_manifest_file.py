from typing import Any

import pytest

from workers.checkpointing.manifest_file import ManifestError, contradiction, decode, encode
from workers.contract.manifest import FORMAT_VERSION, CheckpointId, Chunk, Manifest, ResumePoint, StoredTensor


def _tensor(
    rows: int, *, length: int | None = None, offset: int = 0, shape: int | None = None
) -> StoredTensor:
    chunk = Chunk(
        offsets=(offset,),
        sizes=(rows,),
        file="rank-0.bin",
        start=0,
        length=length or rows * 4,
        digest="xxh3_128:0",
    )
    return StoredTensor(dtype="float32", shape=(shape or rows,), chunks=(chunk,))


def _manifest(**changes: Any) -> Manifest:
    whole: dict[str, Any] = {
        "checkpoint": CheckpointId(step=2, generation=1, attempt=0, round=0, nonce="0badcafe"),
        "parent": None,
        "world_size": 1,
        "resume": ResumePoint(
            step=2, next_index=16, seed=0, tokens_seen=0, data_digest="d", config_digest="c"
        ),
        "tensors": {"model.w": _tensor(4)},
        "files": {"rank-0.bin": 16},
    }
    return Manifest(**(whole | changes))


def test_a_manifest_reads_back_as_it_was_and_is_plain_json() -> None:
    manifest = _manifest()
    assert decode(encode(manifest)) == manifest
    assert Manifest.from_json(encode(manifest)) == manifest  # readers that do not check the seal


def test_every_flipped_byte_of_a_manifest_is_found() -> None:
    content = encode(_manifest())
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= 1
        with pytest.raises(ManifestError):
            decode(bytes(altered))


def test_every_cut_of_a_manifest_is_found() -> None:
    content = encode(_manifest())
    for length in range(len(content)):
        with pytest.raises(ManifestError):
            decode(content[:length])


def test_a_newer_format_is_refused_by_its_number() -> None:
    with pytest.raises(ManifestError, match=f"version {FORMAT_VERSION + 1} is newer"):
        decode(encode(_manifest(version=FORMAT_VERSION + 1)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensors": {"model.w": _tensor(4, shape=5)}}, "model.w: 4 of 5 elements"),
        ({"tensors": {"model.w": _tensor(4, offset=1)}}, "model.w: a chunk lies outside the tensor"),
        ({"tensors": {"model.w": _tensor(4, length=17)}}, "model.w: a chunk lies outside rank-0.bin"),
        ({"files": {}}, "model.w: a chunk lies outside rank-0.bin"),
        ({"files": {"rank-0.bin": 16, "../../secret": 1}}, "'../../secret' is not a plain name"),
        ({"files": {"rank-0.bin": 16, "/etc/passwd": 1}}, "'/etc/passwd' is not a plain name"),
    ],
)
def test_what_contradicts_itself_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in (contradiction(_manifest(**changes)) or "")


def test_half_an_optimizer_state_is_named_with_its_parameter() -> None:
    tensors = {
        f"optimizer.{parameter}.{kind}": _tensor(4)
        for parameter in ("layer.0.w", "layer.1.w")
        for kind in ("exp_avg", "exp_avg_sq", "step")
    }
    assert contradiction(_manifest(tensors=tensors)) is None
    del tensors["optimizer.layer.1.w.exp_avg_sq"]
    assert contradiction(_manifest(tensors=tensors)) == "parameter layer.1.w lacks its exp_avg_sq"
