import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.checkpointing import catalog
from workers.checkpointing.fence import FencedError, check_fence, raise_fence, read_fence
from workers.contract.rundir import checkpoints_dir, fence_file
from workers.errors import StorageError

Publish = Callable[..., str]


def _names(run_dir: str) -> list[str]:
    return [str(manifest.checkpoint) for manifest in catalog.published(run_dir)]


def test_a_run_that_has_not_begun_holds_nothing(run_dir: str) -> None:
    assert catalog.survey(run_dir) == catalog.Survey()
    assert catalog.choose(catalog.survey(run_dir)) is None


def test_checkpoints_are_ordered_by_number_never_as_text(run_dir: str, publish: Publish) -> None:
    names = [publish(step) for step in (99_999_999, 100_000_000, 101, 9, 10, 8)]
    assert _names(run_dir) == [names[i] for i in (5, 3, 4, 2, 0, 1)]


def test_at_one_step_the_later_generation_then_round_is_the_newer(run_dir: str, publish: Publish) -> None:
    old, newer, newest = publish(5, round_=0), publish(5, round_=10), publish(5, generation=2, round_=0)
    assert _names(run_dir) == [old, newer, newest]


def test_the_newest_that_is_not_excluded_is_chosen(run_dir: str, publish: Publish) -> None:
    first, second, third = (publish(step) for step in (1, 2, 3))
    found = catalog.survey(run_dir)
    chosen = [catalog.choose(found, excluded) for excluded in ([], [third], [third, second])]
    assert [str(manifest.checkpoint) for manifest in chosen if manifest] == [third, second, first]
    assert catalog.choose(found, [first, second, third]) is None


def test_another_run_beside_it_is_never_seen(tmp_path: Path, run_dir: str, publish: Publish) -> None:
    """B062."""
    publish(1000)
    assert catalog.choose(catalog.survey(str(tmp_path / "job-2"))) is None


def test_the_lineage_leads_over_parents_and_past_what_retention_took(run_dir: str, publish: Publish) -> None:
    first = publish(1)
    second = publish(2, parent=first)
    publish(3, parent=second)  # a branch that was not continued
    third = publish(3, round_=1, parent=second)
    found = catalog.survey(run_dir)
    line = catalog.lineage(found, found.published[-1])
    assert [str(manifest.checkpoint) for manifest in line] == [first, second, third]
    catalog.delete(run_dir, first)
    found = catalog.survey(run_dir)
    assert len(catalog.lineage(found, found.published[-1])) == 2


def test_directories_that_are_not_ours_are_neither_seen_nor_touched(run_dir: str, publish: Publish) -> None:
    publish(1)
    foreign = checkpoints_dir(run_dir) / "checkpoint-500"
    foreign.mkdir()
    (foreign / "manifest.json").write_text("{}")
    assert len(catalog.survey(run_dir).published) == 1
    assert catalog.survey(run_dir).damaged == catalog.survey(run_dir).unpublished == ()
    assert catalog.sweep_unpublished(run_dir, generation=9, attempt=9, round_=9) == []
    assert foreign.exists()


def test_a_copy_under_another_name_is_damaged(run_dir: str, publish: Publish) -> None:
    name = publish(1)
    shutil.copytree(
        checkpoints_dir(run_dir) / name, checkpoints_dir(run_dir) / name.replace("00000001", "00000009")
    )
    (damaged,) = catalog.survey(run_dir).damaged
    assert damaged.name.startswith("step-00000009")
    assert name in damaged.reason


def test_a_condemned_checkpoint_is_not_published_any_more_and_keeps_its_files(
    run_dir: str, publish: Publish
) -> None:
    good, bad = publish(1), publish(2)
    catalog.condemn(run_dir, bad)
    catalog.condemn(run_dir, bad)
    found = catalog.survey(run_dir)
    assert _names(run_dir) == [good]
    assert [damaged.name for damaged in found.damaged] == [bad]
    assert (checkpoints_dir(run_dir) / bad / "rank-0.bin").exists()


def test_only_leftovers_of_earlier_rounds_are_swept(run_dir: str, publish: Publish) -> None:
    kept = publish(1)
    names = [
        publish(2, round_=0),
        publish(2, round_=1),
        publish(2, round_=2),
        publish(2, generation=0, round_=7),
    ]
    for name in names:
        (checkpoints_dir(run_dir) / name / "manifest.json").unlink()
    swept = catalog.sweep_unpublished(run_dir, generation=1, attempt=0, round_=1)
    assert sorted(swept) == sorted([names[0], names[3]])
    assert sorted(p.name for p in checkpoints_dir(run_dir).iterdir()) == sorted([kept, names[1], names[2]])


class TestDeletion:
    def test_deleting_twice_and_after_somebody_else_is_fine(self, run_dir: str, publish: Publish) -> None:
        """B080."""
        first, second = publish(1), publish(2)
        shutil.rmtree(checkpoints_dir(run_dir) / second)
        for name in (first, first, second):
            catalog.delete(run_dir, name)
        assert catalog.survey(run_dir) == catalog.Survey()

    def test_many_may_delete_the_same_one_at_once(self, run_dir: str, publish: Publish) -> None:
        name = publish(1)
        errors: list[BaseException] = []

        def delete() -> None:
            try:
                catalog.delete(run_dir, name)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=delete) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert list(checkpoints_dir(run_dir).iterdir()) == []

    def test_a_deletion_that_stops_half_way_leaves_nothing_that_counts(
        self, run_dir: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = publish(1)

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", fail)
            with pytest.raises(StorageError, match="Input/output error"):
                catalog.delete(run_dir, name)
        assert catalog.survey(run_dir).unpublished == (name,)
        assert catalog.sweep_unpublished(run_dir, generation=1, attempt=0, round_=1) == [name]

    def test_a_checkpoint_that_is_deleted_during_a_survey_is_not_called_damaged(
        self, run_dir: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = publish(1)
        monkeypatch.setattr(catalog, "contradiction", lambda _: catalog.delete(run_dir, name))
        assert catalog.survey(run_dir).damaged == ()


class TestFence:
    def test_it_rises_and_never_falls(self, run_dir: str) -> None:
        assert read_fence(run_dir) == -1
        raise_fence(run_dir, 0)
        raise_fence(run_dir, 2)
        raise_fence(run_dir, 2)
        with pytest.raises(FencedError, match="generation 2 is in charge"):
            raise_fence(run_dir, 1)
        assert read_fence(run_dir) == 2
        with pytest.raises(FencedError):
            check_fence(run_dir, 1)
        check_fence(run_dir, 2)
        check_fence(run_dir, 3)

    def test_what_was_published_before_is_inherited_and_what_comes_late_is_ignored(
        self, run_dir: str, publish: Publish
    ) -> None:
        inherited = publish(1, generation=1)
        raise_fence(run_dir, 2)
        late = publish(2, generation=1, round_=1)
        own = publish(2, generation=2)
        assert _names(run_dir) == [inherited, own]
        raise_fence(run_dir, 3)
        assert _names(run_dir) == [inherited, own]
        assert catalog.sweep_unpublished(run_dir, generation=3, attempt=0, round_=0) == [late]

    def test_a_fence_that_cannot_be_read_stops_everybody(self, run_dir: str) -> None:
        raise_fence(run_dir, 1)
        fence_file(run_dir).write_text("3\x00")
        with pytest.raises(StorageError, match="not a fence file"):
            catalog.survey(run_dir)
