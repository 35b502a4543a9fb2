"""Checkpoints of several ranks: resharding, agreement, saving behind training."""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_states import full_state, gathered, lay_out, make_saver, overwrite, resume_at, same

from workers.checkpointing import catalog
from workers.checkpointing.chunks import ChunkFiles
from workers.checkpointing.load import load
from workers.checkpointing.local_storage import DurableFile
from workers.contract.manifest import Chunk
from workers.contract.rundir import checkpoints_dir
from workers.errors import StorageError
from workers.world import World

pytestmark = pytest.mark.torch


def _save(world: World, run_dir: str) -> str:
    return make_saver(world, run_dir).save_final(lay_out(full_state(1), world.world_size), {}, resume_at(1))


def _load(world: World, run_dir: str, name: str) -> tuple[bool, int]:
    read_bytes = 0
    read = ChunkFiles.read

    def counted(files: ChunkFiles, chunk: Chunk) -> bytearray:
        nonlocal read_bytes
        read_bytes += chunk.length
        return read(files, chunk)

    ChunkFiles.read = counted  # type: ignore[method-assign] -- this process is the test's own
    state = lay_out(full_state(9), world.world_size)
    load(run_dir, name, state)
    return same(gathered(state), full_state(1)), read_bytes


@pytest.mark.parametrize(("writers", "readers"), [(1, 3), (2, 2), (3, 1), (3, 4), (4, 2)])
def test_what_any_number_of_ranks_wrote_any_number_reads(
    ranks: Any, tmp_path: Path, writers: int, readers: int
) -> None:
    names = ranks(_save, writers, str(tmp_path))
    assert len(set(names)) == 1
    (manifest,) = catalog.published(str(tmp_path))
    assert manifest.world_size == writers
    assert manifest.total_bytes == sum(t.nbytes for t in full_state(1).values()), "each element once"
    loads = ranks(_load, readers, str(tmp_path), names[0])
    assert [is_same for is_same, _ in loads] == [True] * readers
    if writers == readers > 1:
        assert max(read for _, read in loads) < manifest.total_bytes, "a rank reads its own part only"


def test_replicated_tensors_are_written_by_all_ranks_in_turn(ranks: Any, tmp_path: Path) -> None:
    ranks(_save_replicated, 4, str(tmp_path))
    (manifest,) = catalog.published(str(tmp_path))
    assert manifest.files == {f"rank-{rank}.bin": 3 * 64 for rank in range(4)}


def _save_replicated(world: World, run_dir: str) -> None:
    state = {f"model.{i}": torch.full((4, 4), float(i)) for i in range(12)}
    make_saver(world, run_dir).save_final(state, {}, resume_at(1))


def test_training_goes_on_while_its_state_is_written(ranks: Any, tmp_path: Path) -> None:
    assert ranks(_train_and_save, 2, str(tmp_path)) == [True, True]
    assert [m.checkpoint.step for m in catalog.published(str(tmp_path))] == list(range(1, 13))


def _train_and_save(world: World, run_dir: str) -> bool:
    saver = make_saver(world, run_dir, keep=20)
    state = lay_out(full_state(0), world.world_size)
    for step in range(1, 13):
        overwrite(state, full_state(step))
        world.sum_over_ranks([step] * 1000)
        saver.save(state, {}, resume_at(step))
        saver.poll()
    saver.wait()
    found = []
    for manifest in catalog.published(run_dir):
        load(run_dir, str(manifest.checkpoint), state)
        found.append(same(gathered(state), full_state(manifest.checkpoint.step)))
    return all(found)


def test_nothing_is_published_before_the_slowest_rank_has_written(ranks: Any, tmp_path: Path) -> None:
    """B073."""
    before, after = ranks(_save_with_a_slow_rank, 3, str(tmp_path))[0]
    assert (before, after) == ([], [1])


def _save_with_a_slow_rank(world: World, run_dir: str) -> tuple[list[int], list[int]]:
    may_write = threading.Event()
    if world.rank == 2:
        append = DurableFile.append

        def held(file: DurableFile, content: bytes | memoryview) -> None:
            assert may_write.wait(60)
            append(file, content)

        DurableFile.append = held  # type: ignore[method-assign]
    saver = make_saver(world, run_dir)
    saver.save(lay_out(full_state(1), world.world_size), {}, resume_at(1))
    if world.rank == 0:  # only when the others are done does an early publication show
        _until(lambda: {"rank-0.bin", "rank-1.bin"} <= {p.name for p in checkpoints_dir(run_dir).glob("*/*")})
        saver.poll()
    before = [m.checkpoint.step for m in catalog.published(run_dir)]
    dist.barrier(world.group)
    may_write.set()
    saver.wait()
    return before, [m.checkpoint.step for m in catalog.published(run_dir)]


def _until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    waiter = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        waiter.wait(0.005)


@pytest.mark.parametrize("failing", [0, 1])
def test_one_rank_that_cannot_write_fails_the_save_for_all_and_the_next_one_succeeds(
    ranks: Any, tmp_path: Path, failing: int
) -> None:
    outcomes = ranks(_save_with_a_failing_rank, 2, str(tmp_path), failing)
    assert [newest for newest, _ in outcomes] == [(None, "step-00000002")] * 2
    messages = outcomes[0][1]
    assert [kind for kind, _ in messages] == ["checkpoint_failed", "checkpoint_published"]
    assert f"rank {failing}: " in messages[0][1]
    assert "Input/output error" in messages[0][1]
    assert outcomes[1][1] == [], "one rank tells"
    assert [m.checkpoint.step for m in catalog.published(str(tmp_path))] == [2]
    assert len(list(checkpoints_dir(str(tmp_path)).iterdir())) == 1


def _save_with_a_failing_rank(world: World, run_dir: str, failing: int) -> Any:
    told: list[tuple[str, str]] = []
    saver = make_saver(world, run_dir, emit=lambda m: told.append((m.kind.value, m.message)))
    state = lay_out(full_state(1), world.world_size)
    fsync = os.fsync

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    if world.rank == failing:
        os.fsync = fail
    saver.save(state, {}, resume_at(1))
    saver.wait()
    os.fsync = fsync
    first = saver.newest
    second = saver.save_final(state, {}, resume_at(2))
    return (first, second.partition(".")[0]), told


def test_a_rank_that_does_not_see_the_checkpoint_says_so_and_does_not_start_from_zero(
    ranks: Any, tmp_path: Path
) -> None:
    (name, _) = ranks(_save, 2, str(tmp_path / "job"))
    said = ranks(_load_on_two_hosts, 2, [str(tmp_path / "job"), str(tmp_path / "not-mounted")], name)
    assert said[0] == ""
    assert f"checkpoint {name} is not visible on host" in said[1]


def _load_on_two_hosts(world: World, run_dirs: list[str], name: str) -> str:
    try:
        load(run_dirs[world.rank], name, lay_out(full_state(9), world.world_size))
    except StorageError as error:
        return str(error)
    return ""


def test_four_ranks_that_save_at_every_step_leave_one_directory_each(ranks: Any, tmp_path: Path) -> None:
    """B063."""
    ranks(_save_often, 4, str(tmp_path))
    assert [m.checkpoint.step for m in catalog.published(str(tmp_path))] == list(range(1, 51))
    assert len(list(checkpoints_dir(str(tmp_path)).iterdir())) == 50


def _save_often(world: World, run_dir: str) -> None:
    saver = make_saver(world, run_dir, keep=50)
    state = {"model.w": lay_out(full_state(1), world.world_size)["model.even"]}
    for step in range(1, 51):
        saver.save(state, {}, resume_at(step))
    saver.wait()
