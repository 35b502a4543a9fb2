"""Fixtures: a run directory, a saver that writes by itself, hand-made published checkpoints."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.checkpointing.manifest_file import digest, encode
from workers.checkpointing.save import Author, Saver
from workers.contract.manifest import CheckpointId, Chunk, Manifest, ResumePoint, StoredTensor
from workers.contract.rundir import checkpoints_dir


def _resume_at(step: int) -> ResumePoint:
    return ResumePoint(
        step=step, next_index=step * 8, seed=0, tokens_seen=0, data_digest="data", config_digest="config"
    )


@pytest.fixture
def resume_at() -> Callable[[int], ResumePoint]:
    """The resume point after `step` steps."""
    return _resume_at


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    """An empty run directory."""
    return str(tmp_path / "job-1")


@pytest.fixture
def told() -> list[Any]:
    """What the savers of this test told."""
    return []


@pytest.fixture
def saver(run_dir: str, told: list[Any]) -> Callable[..., Saver]:
    """Make a saver of one process: `saver(round_=0, parent=None, keep=3, mode="async", generation=1)`."""

    def make(*, round_: int = 0, generation: int = 1, keep: int = 3, **changes: Any) -> Saver:
        arguments: dict[str, Any] = {
            "run_dir": run_dir,
            "author": Author(generation=generation, attempt=0, round=round_, nonce=f"{round_:08x}"),
            "world": SimpleNamespace(rank=0, world_size=1, checkpoint_group=None),
            "keep": keep,
            "emit": told.append,
            "parent": None,
        }
        return Saver(**(arguments | changes))

    return make


@pytest.fixture
def publish(run_dir: str) -> Callable[..., str]:
    """Publish a checkpoint of one small tensor by hand: `publish(step, generation=1, round_=0, parent=None)` -> its name."""

    def make(step: int, *, generation: int = 1, round_: int = 0, parent: str | None = None) -> str:
        checkpoint = CheckpointId(
            step=step, generation=generation, attempt=0, round=round_, nonce=f"{round_:08x}"
        )
        content = bytes(range(8))
        chunk = Chunk(offsets=(0,), sizes=(2,), file="rank-0.bin", start=0, length=8, digest=digest(content))
        manifest = Manifest(
            checkpoint=checkpoint,
            parent=parent,
            world_size=1,
            resume=_resume_at(step),
            tensors={"model.w": StoredTensor(dtype="float32", shape=(2,), chunks=(chunk,))},
            files={"rank-0.bin": 8},
        )
        directory = checkpoints_dir(run_dir) / str(checkpoint)
        directory.mkdir(parents=True)
        (directory / "rank-0.bin").write_bytes(content)
        (directory / "manifest.json").write_bytes(encode(manifest))
        return str(checkpoint)

    return make
