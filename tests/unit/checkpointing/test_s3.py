"""The same checkpoints in an object store: a real client speaks to a real server over HTTP."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.run_dir.checkpoints import list_checkpoints
from workers.checkpointing import catalog, inspect
from workers.checkpointing.fence import FencedError, check_fence, raise_fence
from workers.checkpointing.load import load
from workers.checkpointing.save import Saver
from workers.checkpointing.storage import open_storage
from workers.contract.config import TrainingConfig
from workers.contract.manifest import ResumePoint
from workers.errors import DamagedCheckpointError, MissingError, StorageError
from workers.export import export

MakeSaver = Callable[..., Saver]
ResumeAt = Callable[[int], ResumePoint]
# aiobotocore's own: it asks for the current event loop in a way that Python will take away one day.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::ResourceWarning")

TASK = TrainingConfig.model_validate(
    {"model": {"kind": "task", "target": "my_package:task"}, "data": {"kind": "task"}}
)


def state(step: int) -> dict[str, torch.Tensor]:
    return {
        "model.w": torch.full((3, 5), float(step)),
        "optimizer.w.exp_avg": torch.full((3, 5), -float(step)),
    }


@pytest.fixture
def saver(s3_url: str, saver: MakeSaver) -> MakeSaver:
    """A saver whose run lies in the bucket."""
    return lambda **changes: saver(**{"run_dir": s3_url, **changes})


def steps(url: str) -> list[int]:
    return [manifest.checkpoint.step for manifest in catalog.published(url)]


def test_what_was_saved_is_listed_loaded_and_exported(
    s3_url: str, saver: MakeSaver, resume_at: ResumeAt, tmp_path: Path
) -> None:
    one = saver(keep=2)
    for step in (1, 2, 3):
        name = one.save_final(state(step), {}, resume_at(step))
    assert steps(s3_url) == [2, 3], "keep is 2"
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state(0).items()}
    assert load(s3_url, name, loaded).resume == resume_at(3)
    assert all(loaded[key].equal(tensor) for key, tensor in state(3).items())
    exported = export(s3_url, None, TASK, tmp_path / "out")
    assert exported.step == 3
    assert load_file(exported.export_path / "model.safetensors")["w"].equal(state(3)["model.w"])
    rows = list(inspect.verify_all(s3_url))
    assert [(row.step, row.problem) for row in rows] == [(3, ""), (2, "")]
    assert [row.step for row in list_checkpoints(s3_url)] == [3, 2], "the control plane sees the same"
    assert all(row.published_at is not None for row in rows)


def test_a_pinned_one_stays_and_a_leftover_goes(s3_url: str, saver: MakeSaver, resume_at: ResumeAt) -> None:
    one = saver(keep=1)
    one.save_final(state(1), {}, resume_at(1))
    inspect.pin(s3_url, "1")
    storage = open_storage(s3_url)
    leftover = "checkpoints/step-00000009.g0.a0.r0.00000000/rank-0.bin"
    storage.publish(leftover, b"half")
    two = saver(keep=1, round_=1, parent=str(catalog.published(s3_url)[0].checkpoint))
    for step in (2, 3):
        two.save_final(state(step), {}, resume_at(step))
    assert steps(s3_url) == [1, 3]
    assert storage.size(leftover) is None
    assert [row.is_pinned for row in inspect.list_stored(s3_url)] == [False, True]
    inspect.unpin(s3_url, "1")
    two.save_final(state(4), {}, resume_at(4))
    assert steps(s3_url) == [4]


@pytest.mark.parametrize("damage", ["flipped", "short", "gone", "manifest"])
def test_damage_is_found_and_named_and_the_older_one_is_next(
    s3_url: str, saver: MakeSaver, resume_at: ResumeAt, damage: str
) -> None:
    one = saver()
    older = one.save_final(state(1), {}, resume_at(1))
    newer = one.save_final(state(2), {}, resume_at(2))
    file = "manifest.json" if damage == "manifest" else "rank-0.bin"
    storage, path = open_storage(s3_url), f"checkpoints/{newer}/{file}"
    content = bytearray(storage.read(path))
    content[20] ^= 1
    storage.remove(path)
    if damage != "gone":
        storage.publish(path, bytes(content[:-1] if damage == "short" else content))
    problems = {row.name: row.problem for row in inspect.verify_all(s3_url)}
    assert problems[older] == ""
    assert file in problems[newer]
    with pytest.raises(DamagedCheckpointError, match=file):
        load(s3_url, newer, state(0))
    following = catalog.choose(catalog.survey(s3_url), exclude=[newer])
    assert following is not None
    assert str(following.checkpoint) == older


def test_an_older_generation_is_shut_out(s3_url: str, saver: MakeSaver, resume_at: ResumeAt) -> None:
    raise_fence(s3_url, 2)
    check_fence(s3_url, 2)
    with pytest.raises(FencedError):
        check_fence(s3_url, 1)
    with pytest.raises(StorageError):
        saver(generation=1).save_final(state(1), {}, resume_at(1))
    assert steps(s3_url) == []


def test_a_bucket_that_is_not_there_is_named(s3_url: str, saver: MakeSaver, resume_at: ResumeAt) -> None:
    with pytest.raises(StorageError, match="s3://nowhere"):
        saver(run_dir="s3://nowhere/run").save_final(state(1), {}, resume_at(1))


def test_names_and_sizes_are_those_of_the_store(s3_url: str) -> None:
    storage = open_storage(s3_url)
    assert storage.files(".") == []
    storage.publish("a/one", b"12")
    storage.publish("two", b"")
    assert (storage.directories("."), storage.files("."), storage.files("a")) == (["a"], ["two"], ["one"])
    assert (storage.size("a/one"), storage.size("a"), storage.size("b")) == (2, None, None)
    assert storage.rename("a/one", "a/three")
    assert not storage.rename("a/one", "a/four")
    assert storage.read("a/three") == b"12"
    with pytest.raises(MissingError):
        storage.read("a/one")
    with storage.create("large") as file:
        for part in range(3):
            file.append(bytes([part]) * (12 << 20))
    assert storage.size("large") == 36 << 20
    reader = storage.open("large")
    assert reader.read_range((12 << 20) - 1, 2) == b"\0\1"
    storage.remove_tree("a")
    assert storage.directories(".") == []
    assert storage.files(".") == ["large", "two"]
