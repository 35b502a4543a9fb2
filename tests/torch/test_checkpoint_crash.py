"""SIGKILL in the midst of saves: whatever the moment, the newest published checkpoint loads and holds its own step."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sharded_states import full_state, lay_out, make_saver, overwrite, resume_at, same

from workers.checkpointing import catalog
from workers.checkpointing.load import load
from workers.contract.failure import RankEnding, is_consequence
from workers.world import World

pytestmark = pytest.mark.torch

STEPS = 4
KEEP = 2
MOMENTS = 20
DURABLE_CALLS = ("mkdir", "open", "write", "fsync", "replace", "unlink", "rmdir")


ALONE = SimpleNamespace(rank=0, world_size=1, checkpoint_group=None)


def _count_calls(before_call: Callable[[int], None]) -> Callable[[], int]:
    """Call `before_call(n)` before the n-th call that changes storage in this process; returns the counter."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            before_call(count)
            return call(*args, **kwargs)

        return wrapper

    for name in DURABLE_CALLS:
        setattr(os, name, counted(getattr(os, name)))
    return lambda: count


def _save_all(world: World, run_dir: str, victim: int, moment: int) -> int:
    """Save steps 1 to STEPS; the victim kills itself before its `moment`-th change of storage. Returns the count."""

    def before_call(count: int) -> None:
        if world.rank == victim and count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    saver = make_saver(world, run_dir, keep=KEEP)
    state = lay_out(full_state(0), world.world_size)
    changes = _count_calls(before_call)
    for step in range(1, STEPS + 1):
        overwrite(state, full_state(step))
        saver.save(state, {}, resume_at(step))
    saver.wait()
    return changes()


def _resume_alone(run_dir: str) -> int:
    """Load the newest as the next round would, check its content, save on; returns the step that it held."""
    found = catalog.survey(run_dir)
    assert found.damaged == ()
    newest = catalog.choose(found)
    step = 0
    if newest is not None:
        state = {name: torch.zeros_like(tensor) for name, tensor in full_state(0).items()}
        step = load(run_dir, str(newest.checkpoint), state).resume.step
        assert step == newest.checkpoint.step
        assert same(state, full_state(step))
    parent = str(newest.checkpoint) if newest else None
    saver = make_saver(ALONE, run_dir, round_=1, keep=KEEP, parent=parent)
    saver.save_final(full_state(STEPS + 1), {}, resume_at(STEPS + 1))
    after = catalog.survey(run_dir)
    assert after.unpublished == (), "the torn one is swept"
    assert len(after.published) == min(KEEP, 1 + len(found.published))
    return step


@pytest.fixture(scope="module")
def changes_by_rank(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """How often each rank changes storage when nobody is killed."""
    counts: list[int] = ranks(_save_all, 2, str(tmp_path_factory.mktemp("unkilled")), -1, 0)
    return counts


def test_a_kill_at_any_of_20_random_moments_of_a_save_never_costs_a_published_checkpoint(
    ranks: Any, tmp_path: Path, changes_by_rank: list[int]
) -> None:
    generator = random.Random(20)
    found_steps = []
    for attempt in range(MOMENTS):
        victim = generator.randrange(2)
        moment = generator.randint(1, changes_by_rank[victim])
        run_dir = str(tmp_path / str(attempt))
        outcomes = ranks.start(_save_all, 2, run_dir, victim, moment).outcomes()
        assert outcomes[victim].exit_code == -signal.SIGKILL
        found_steps.append(_resume_alone(run_dir))
    assert len(set(found_steps)) > 2, "the moments fell all over the run"


def test_a_kill_before_every_single_change_of_storage_in_one_save(ranks: Any, tmp_path: Path) -> None:
    first = str(tmp_path / "unkilled")
    (changes,) = ranks(_save_one_more, 1, first, 0, join=False)
    assert [m.checkpoint.step for m in catalog.published(first)] == [2]
    found_steps = []
    for moment in range(1, changes + 1):
        run_dir = str(tmp_path / str(moment))
        (outcome,) = ranks.start(_save_one_more, 1, run_dir, moment, join=False).outcomes()
        assert outcome.exit_code == -signal.SIGKILL
        found_steps.append(_resume_alone(run_dir))
    assert found_steps == sorted(found_steps)
    assert set(found_steps) == {1, 2}


def _save_one_more(_: object, run_dir: str, moment: int) -> int:
    """Publish step 1, then step 2 with keep 1, killed before the `moment`-th change; returns how many there were."""
    saver = make_saver(ALONE, run_dir, keep=1)
    saver.save_final(full_state(1), {}, resume_at(1))

    def before_call(count: int) -> None:
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    changes = _count_calls(before_call)
    saver.save_final(full_state(2), {}, resume_at(2))
    return changes()


def test_ranks_that_are_left_learn_of_a_dead_writer_and_do_not_hang(ranks: Any, tmp_path: Path) -> None:
    outcomes = ranks.start(_save_until_broken, 3, str(tmp_path)).outcomes()
    assert outcomes[1].exit_code == -signal.SIGKILL
    for survivor in (outcomes[0], outcomes[2]):
        last_words = RankEnding(
            rank=survivor.rank,
            node="here",
            at=0.0,
            error_type=survivor.error_type or "",
            message=survivor.error.strip().splitlines()[-1],
        )
        assert is_consequence(last_words), survivor.error
    assert catalog.published(str(tmp_path)) == []


def _save_until_broken(world: World, run_dir: str) -> None:
    saver = make_saver(world, run_dir)
    state = lay_out(full_state(1), world.world_size)
    world.sum_over_ranks([1])
    if world.rank == 1:
        _count_calls(lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == 3 else None)
    saver.save(state, {}, resume_at(1))
    saver.wait()
