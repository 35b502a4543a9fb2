"""Saving by one process: what is told, what is kept, what happens when storage fails."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.checkpointing import catalog
from workers.checkpointing.fence import raise_fence
from workers.checkpointing.load import load
from workers.checkpointing.local_storage import LocalStorage
from workers.checkpointing.save import Saver
from workers.contract.events import EventKind
from workers.contract.manifest import ResumePoint
from workers.contract.rundir import checkpoints_dir
from workers.errors import StorageError

MakeSaver = Callable[..., Saver]
ResumeAt = Callable[[int], ResumePoint]
MIB = 1024 * 1024


def _state(value: float = 0.0) -> dict[str, torch.Tensor]:
    return {
        "model.w": torch.full((6, 4), float(value)),
        "optimizer.w.exp_avg": torch.full((6, 4), value / 2),
        "optimizer.w.step": torch.tensor(float(value)),
    }


def _kinds(told: list[Any]) -> list[EventKind]:
    return [message.kind for message in told]


def _directories(run_dir: str) -> list[str]:
    return sorted(path.name for path in checkpoints_dir(run_dir).iterdir())


class Gate:
    """Holds every publication while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        publish = LocalStorage.publish

        def held(storage: LocalStorage, name: str, content: bytes) -> None:
            self.reached.set()
            assert self._open.wait(60)
            publish(storage, name, content)

        monkeypatch.setattr(LocalStorage, "publish", held)

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()
        self.reached.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate before every publication, shut; opened at the latest when the test ends."""
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


class Disk:
    """Refuses writes of more than `free_bytes` at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes = 1 << 40
        write = os.write

        def checked(descriptor: int, content: Any) -> int:
            if len(content) > self.free_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, content)

        monkeypatch.setattr(os, "write", checked)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk that can be full."""
    return Disk(monkeypatch)


def test_every_save_gives_one_directory_and_leaves_no_other(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any]
) -> None:
    one = saver(keep=50)
    for step in range(1, 51):
        assert one.save(_state(step), {}, resume_at(step)) > 0
    one.wait()
    assert [m.checkpoint.step for m in catalog.published(run_dir)] == list(range(1, 51))
    assert len(_directories(run_dir)) == 50
    assert _kinds(told) == [EventKind.CHECKPOINT_PUBLISHED] * 50


def test_what_changes_after_save_returned_is_not_in_the_file(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, gate: Gate
) -> None:
    one, state = saver(), _state(1.0)
    one.save(state, {}, resume_at(1))
    for tensor in state.values():
        tensor.fill_(99.0)
    gate.open()
    one.wait()
    back = _state()
    load(run_dir, one.newest or "", back)
    assert all(torch.equal(back[name], tensor) for name, tensor in _state(1.0).items())


def test_a_save_in_flight_is_neither_announced_nor_costs_an_older_one(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any], gate: Gate
) -> None:
    """B070."""
    gate.open()
    one = saver(keep=1)
    first = one.save_final(_state(1), {}, resume_at(1))
    gate.shut()
    one.save(_state(2), {}, resume_at(2))
    assert gate.reached.wait(60)
    one.poll()
    found = catalog.survey(run_dir)
    assert [str(m.checkpoint) for m in found.published] == [first] == [one.newest]
    assert len(found.unpublished) == 1
    assert _kinds(told) == [EventKind.CHECKPOINT_PUBLISHED]
    gate.open()
    one.wait()
    assert [m.checkpoint.step for m in catalog.published(run_dir)] == [2]
    assert _kinds(told)[1:] == [EventKind.CHECKPOINT_PUBLISHED, EventKind.CHECKPOINT_DELETED]


def test_the_last_save_is_waited_for_before_it_is_called_final(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, gate: Gate
) -> None:
    """B072."""
    one = saver()
    one.save(_state(4), {}, resume_at(4))  # the last step was due anyway
    opener = threading.Thread(target=lambda: gate.reached.wait(60) and gate.open())
    opener.start()
    name = one.save_final(_state(4), {}, resume_at(4))
    opener.join()
    assert [str(m.checkpoint) for m in catalog.published(run_dir)] == [name]


def test_a_synchronous_save_is_published_when_it_returns(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any]
) -> None:
    one = saver(mode="sync")
    stall_seconds = one.save(_state(1), {}, resume_at(1))
    assert len(catalog.published(run_dir)) == 1
    assert told[0].data["stall_seconds"] == stall_seconds >= told[0].data["write_seconds"]


def test_what_is_told_of_a_save_is_what_lies_there(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any]
) -> None:
    one = saver(parent="step-00000001.g0.a0.r0.00000000")
    name = one.save_final(_state(2), {"model.head": "model.w"}, resume_at(2))
    (manifest,) = catalog.published(run_dir)
    assert told[0].data["checkpoint"] == name == str(manifest.checkpoint)
    assert told[0].data["bytes"] == manifest.total_bytes == 6 * 4 * 4 * 2 + 4
    assert manifest.parent == "step-00000001.g0.a0.r0.00000000"
    assert manifest.aliases == {"model.head": "model.w"}
    assert manifest.resume == resume_at(2)


def test_a_run_that_resumed_at_its_last_step_does_not_save_it_again(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str
) -> None:
    parent = saver().save_final(_state(4), {}, resume_at(4))
    assert saver(round_=1, parent=parent).save_final(_state(4), {}, resume_at(4)) == parent
    assert len(_directories(run_dir)) == 1


class TestRetention:
    def test_the_highest_steps_stay(self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str) -> None:
        one = saver(keep=2)
        for step in (8, 9, 10, 11, 99, 100, 101):
            one.save(_state(step), {}, resume_at(step))
        one.wait()
        assert [m.checkpoint.step for m in catalog.published(run_dir)] == [100, 101]
        assert len(_directories(run_dir)) == 2

    def test_the_source_of_a_resume_stays_until_a_newer_one_is_published(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, disk: Disk
    ) -> None:
        parent = saver(keep=1).save_final(_state(4), {}, resume_at(4))
        resumed = saver(keep=1, round_=1, parent=parent)
        disk.free_bytes = 0
        resumed.save(_state(6), {}, resume_at(6))
        resumed.wait()
        assert [str(m.checkpoint) for m in catalog.published(run_dir)] == [parent]
        disk.free_bytes = MIB
        newer = resumed.save_final(_state(8), {}, resume_at(8))
        assert [str(m.checkpoint) for m in catalog.published(run_dir)] == [newer]

    def test_a_newer_one_that_was_passed_over_costs_this_lineage_nothing(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str
    ) -> None:
        parent = saver().save_final(_state(4), {}, resume_at(4))
        bad = saver().save_final(_state(8), {}, resume_at(8))  # say its contents failed on load
        one = saver(keep=1, round_=1, parent=parent)
        own = one.save_final(_state(6), {}, resume_at(6))
        assert [str(m.checkpoint) for m in catalog.published(run_dir)] == [own, bad]

    def test_one_that_somebody_removed_by_hand_is_no_trouble(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any]
    ) -> None:
        one = saver(keep=1)
        first = one.save_final(_state(1), {}, resume_at(1))
        catalog.delete(run_dir, first)
        one.save_final(_state(2), {}, resume_at(2))
        assert [m.checkpoint.step for m in catalog.published(run_dir)] == [2]
        assert EventKind.NOTE not in _kinds(told)

    def test_a_deletion_that_fails_is_told_and_the_save_stands(
        self,
        saver: MakeSaver,
        resume_at: ResumeAt,
        run_dir: str,
        told: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one = saver(keep=1)
        one.save_final(_state(1), {}, resume_at(1))

        def fail(*_: object) -> None:
            raise StorageError("read-only file system")

        monkeypatch.setattr(LocalStorage, "remove_tree", fail)
        newest = one.save_final(_state(2), {}, resume_at(2))
        assert newest in [str(m.checkpoint) for m in catalog.published(run_dir)]
        assert _kinds(told)[-1] == EventKind.NOTE
        assert "read-only file system" in told[-1].message


class TestFailures:
    def test_a_full_disk_is_told_costs_nothing_old_and_is_tried_again(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any], disk: Disk
    ) -> None:
        """B069."""
        one = saver()
        for step in (1, 2):
            one.save(_state(step), {}, resume_at(step))
        one.wait()
        disk.free_bytes = 16
        one.save(_state(3), {}, resume_at(3))
        one.wait()
        assert _kinds(told)[-1] == EventKind.CHECKPOINT_FAILED
        assert "storage full" in told[-1].message
        assert run_dir in told[-1].message
        assert [m.checkpoint.step for m in catalog.published(run_dir)] == [1, 2]
        assert len(_directories(run_dir)) == 2, "the partial one is removed"
        disk.free_bytes = MIB
        one.save(_state(4), {}, resume_at(4))
        one.wait()
        assert [m.checkpoint.step for m in catalog.published(run_dir)] == [1, 2, 4]
        assert catalog.published(run_dir)[-1].parent == str(catalog.published(run_dir)[1].checkpoint)

    def test_the_failure_is_told_at_the_next_poll(
        self, saver: MakeSaver, resume_at: ResumeAt, told: list[Any], disk: Disk
    ) -> None:
        """B074."""
        one = saver()
        disk.free_bytes = 0
        one.save(_state(1), {}, resume_at(1))
        for thread in threading.enumerate():
            if thread.name == "checkpoint-writer":
                thread.join()
        one.poll()
        assert _kinds(told) == [EventKind.CHECKPOINT_FAILED]

    def test_a_final_save_that_keeps_failing_fails_the_job_after_three_tries(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any], disk: Disk
    ) -> None:
        one = saver()
        disk.free_bytes = 0
        with pytest.raises(StorageError, match="failed 3 times: storage full"):
            one.save_final(_state(1), {}, resume_at(1))
        assert _kinds(told) == [EventKind.CHECKPOINT_FAILED] * 3
        assert len({message.data["checkpoint"] for message in told}) == 3, "no try can mix with another"
        assert _directories(run_dir) == []

    @pytest.mark.parametrize("name", ["fsync", "replace", "open", "mkdir"])
    def test_an_io_error_of_any_kind_is_a_failed_save_and_the_next_try_succeeds(
        self,
        name: str,
        saver: MakeSaver,
        resume_at: ResumeAt,
        run_dir: str,
        told: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one = saver()
        one.save_final(_state(1), {}, resume_at(1))

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            one.save(_state(2), {}, resume_at(2))
            one.wait()
        assert _kinds(told)[-1] == EventKind.CHECKPOINT_FAILED
        assert "Input/output error" in told[-1].message
        one.save_final(_state(2), {}, resume_at(2))
        assert [m.checkpoint.step for m in catalog.published(run_dir)] == [1, 2]
        assert catalog.survey(run_dir).damaged == ()

    def test_our_own_error_in_the_thread_ends_the_round_instead_of_being_lost(
        self, saver: MakeSaver, resume_at: ResumeAt, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = saver()

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(LocalStorage, "sync_directory", fail)
        one.save(_state(1), {}, resume_at(1))
        with pytest.raises(ZeroDivisionError):
            one.wait()

    def test_an_older_generation_publishes_nothing_any_more(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, told: list[Any], gate: Gate
    ) -> None:
        gate.open()
        old = saver(generation=1)
        first = old.save_final(_state(1), {}, resume_at(1))
        raise_fence(run_dir, 2)
        with pytest.raises(StorageError, match="generation 1 is superseded: generation 2 is in charge"):
            old.save_final(_state(2), {}, resume_at(2))
        assert [str(m.checkpoint) for m in catalog.published(run_dir)] == [first]

    def test_leftovers_of_a_killed_round_are_gone_before_the_next_save(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, publish: Callable[..., str]
    ) -> None:
        torn = publish(9)
        (Path(checkpoints_dir(run_dir)) / torn / "manifest.json").unlink()
        name = saver(round_=1).save_final(_state(4), {}, resume_at(4))
        assert _directories(run_dir) == [name]
