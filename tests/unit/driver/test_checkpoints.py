"""Where a round begins: the driver's choice, on a real run directory."""

from pathlib import Path

import pytest

from tests.unit.driver.conftest import make_request
from workers.checkpointing import holds
from workers.checkpointing.manifest_file import digest, encode
from workers.checkpointing.storage import open_storage
from workers.contract.events import EventKind
from workers.contract.launch import LaunchRequest, Origin
from workers.contract.manifest import CheckpointId, Chunk, Manifest, ResumePoint, StoredTensor
from workers.contract.rundir import checkpoints_dir
from workers.driver.checkpoints import Checkpoints
from workers.driver.effects import Chosen, NotChosen, Say


def publish(run_dir: Path, step: int) -> str:
    checkpoint = CheckpointId(step=step, generation=0, attempt=0, round=0, nonce="0" * 8)
    content = bytes(8)
    chunk = Chunk(offsets=(0,), sizes=(2,), file="rank-0.bin", start=0, length=8, digest=digest(content))
    manifest = Manifest(
        checkpoint=checkpoint,
        parent=None,
        world_size=1,
        resume=ResumePoint(step=step, next_index=0, seed=0, tokens_seen=0, data_digest="", config_digest=""),
        tensors={"model.w": StoredTensor(dtype="float32", shape=(2,), chunks=(chunk,))},
        files={"rank-0.bin": 8},
    )
    directory = checkpoints_dir(str(run_dir)) / str(checkpoint)
    directory.mkdir(parents=True)
    (directory / "rank-0.bin").write_bytes(content)
    (directory / "manifest.json").write_bytes(encode(manifest))
    return str(checkpoint)


@pytest.fixture
def said() -> list[Say]:
    return []


@pytest.fixture
def fork(tmp_path: Path) -> LaunchRequest:
    """A fork of step 5 of another run, held for it."""
    origin = Origin(job_id="source", run=str(tmp_path / "source"), checkpoint=publish(tmp_path / "source", 5))
    holds.hold(origin.run, origin.checkpoint, origin.holder("j1"))
    return make_request(run_dir=str(tmp_path / "fork"), origin=origin)


def chosen(checkpoints: Checkpoints, name: str | None = None) -> tuple[str | None, str | None, int]:
    answer = checkpoints.choose(name)
    assert isinstance(answer, Chosen)
    return answer.resume_from, answer.run, answer.step


def test_the_newest_is_chosen_and_what_is_damaged_is_told_once(tmp_path: Path, said: list[Say]) -> None:
    older, newer = publish(tmp_path, 1), publish(tmp_path, 2)
    (checkpoints_dir(str(tmp_path)) / newer / "rank-0.bin").write_bytes(b"")
    checkpoints = Checkpoints(make_request(run_dir=str(tmp_path)), said.append)
    assert chosen(checkpoints) == chosen(checkpoints) == (older, None, 1)
    (told,) = said
    assert told.kind is EventKind.CHECKPOINT_DAMAGED
    assert "rank-0.bin has 0 of 8 bytes" in told.message


def test_a_fork_begins_with_its_origin_and_goes_on_with_its_own(
    fork: LaunchRequest, tmp_path: Path, said: list[Say]
) -> None:
    assert fork.origin is not None
    checkpoints = Checkpoints(fork, said.append)
    assert chosen(checkpoints) == (fork.origin.checkpoint, fork.origin.run, 5)
    own = publish(tmp_path / "fork", 6)
    assert chosen(checkpoints) == (own, None, 6)


def test_the_origin_is_held_until_the_fork_has_published(fork: LaunchRequest, said: list[Say]) -> None:
    """B076."""
    assert fork.origin is not None
    checkpoints = Checkpoints(fork, said.append)
    chosen(checkpoints)
    storage = open_storage(fork.origin.run)
    assert holds.holders(storage, fork.origin.checkpoint, now=None) == ("job-j1",)
    for _ in range(2):
        checkpoints.let_go_of_origin()
    assert holds.holders(storage, fork.origin.checkpoint, now=None) == ()


def test_a_fork_whose_origin_is_gone_or_damaged_never_begins_from_zero(
    fork: LaunchRequest, said: list[Say]
) -> None:
    assert fork.origin is not None
    directory = checkpoints_dir(fork.origin.run) / fork.origin.checkpoint
    checkpoints = Checkpoints(fork, said.append)
    checkpoints.condemn(fork.origin.checkpoint)
    assert (directory / "manifest.json").exists(), "it is the other job's to take out"
    answer = checkpoints.choose(None)
    assert isinstance(answer, NotChosen)
    assert "is damaged" in answer.reason
    (directory / "manifest.json").unlink()
    answer = Checkpoints(fork, said.append).choose(None)
    assert isinstance(answer, NotChosen)
    assert "of job source, which this one begins with, is not published" in answer.reason


def test_a_job_whose_checkpoints_are_all_damaged_does_not_begin_again_by_itself(
    tmp_path: Path, said: list[Say]
) -> None:
    for step in (1, 2):
        (checkpoints_dir(str(tmp_path)) / publish(tmp_path, step) / "rank-0.bin").write_bytes(b"")
    answer = Checkpoints(make_request(run_dir=str(tmp_path)), said.append).choose(None)
    assert isinstance(answer, NotChosen)
    assert "all checkpoints" in answer.reason
    assert "--resume-from" in answer.reason
    assert [one.kind for one in said] == [EventKind.CHECKPOINT_DAMAGED] * 2
