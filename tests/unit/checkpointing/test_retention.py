"""Retention: what is given up, what is held, and that neither races the other."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.checkpointing import catalog, holds, inspect, retention
from workers.checkpointing.retention import best, retire, to_delete
from workers.checkpointing.save import Saver
from workers.checkpointing.storage import open_storage
from workers.contract.manifest import CheckpointId, Manifest, ResumePoint
from workers.contract.rundir import HOLDS, checkpoints_dir
from workers.errors import MissingError

Publish = Callable[..., str]
MakeSaver = Callable[..., Saver]
ResumeAt = Callable[[int], ResumePoint]

losses = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


def _manifest(step: int, round_: int = 0, **resume: Any) -> Manifest:
    point = ResumePoint(step=step, next_index=0, seed=0, tokens_seen=0, data_digest="", config_digest="")
    return Manifest(
        checkpoint=CheckpointId(step=step, generation=0, attempt=0, round=round_, nonce=f"{round_:08x}"),
        parent=None,
        world_size=1,
        resume=point.model_copy(update=resume),
        tensors={},
        files={},
    )


def _steps(manifests: list[Manifest]) -> list[int]:
    return [manifest.checkpoint.step for manifest in manifests]


@given(
    ids=st.sets(st.tuples(st.integers(0, 12_000), st.integers(0, 3)), min_size=1, max_size=12),
    keep=st.integers(1, 4),
    data=st.data(),
)
def test_retention_keeps_the_newest_and_those_in_use(
    ids: set[tuple[int, int]], keep: int, data: st.DataObject
) -> None:
    """B076, B077."""
    manifests = [_manifest(step, round_) for step, round_ in ids]
    in_use = data.draw(st.sets(st.sampled_from([str(m.checkpoint) for m in manifests])))
    given_up = to_delete(manifests, keep, in_use)
    newest_first = [str(_manifest(step, round_).checkpoint) for step, round_ in sorted(ids, reverse=True)]
    assert set(given_up) == set(newest_first[keep:]) - in_use
    assert newest_first[0] not in given_up


@given(values=st.lists(losses, min_size=1, max_size=9), keep_best=st.integers(0, 3))
def test_whatever_the_losses_the_newest_and_the_best_stay(values: list[float | None], keep_best: int) -> None:
    """B078, B079: keep-last and keep-best together never delete the newest, and nothing that is no number is best."""
    manifests = [_manifest(step, validation_loss=loss) for step, loss in enumerate(values)]
    given_up = to_delete(manifests, 1, (), keep_best=keep_best)
    kept = [m for m in manifests if str(m.checkpoint) not in given_up]
    finite = sorted(v for v in values if v is not None and abs(v) < float("inf"))
    assert kept[-1] is manifests[-1]
    assert sorted(m.resume.validation_loss for m in best(manifests, keep_best)) == finite[:keep_best]  # type: ignore[type-var]
    assert len(kept) <= 1 + keep_best


def test_the_best_is_by_validation_loss_where_there_is_one_else_by_training_loss() -> None:
    trained = [_manifest(step, loss_last=loss) for step, loss in [(1, 0.5), (2, 0.2), (3, 0.9)]]
    assert _steps(best(trained, 2)) == [2, 1]
    validated = [
        _manifest(4, loss_last=0.01, validation_loss=3.0),
        _manifest(5, loss_last=9.0, validation_loss=2.0),
        _manifest(6, loss_last=9.0, validation_loss=2.0),  # carries the evaluation of 5 on
    ]
    assert _steps(best([*trained, *validated], 2)) == [5, 6]


def test_a_first_evaluation_that_is_no_number_is_worst_and_goes(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str
) -> None:
    """B079."""
    one = saver(keep=1, keep_best=1)
    for step, loss in [(1, float("nan")), (2, 0.5), (3, 0.7), (4, float("inf"))]:
        one.save(_tensor(step), {}, resume_at(step).model_copy(update={"validation_loss": loss}))
    one.wait()
    assert _steps(catalog.published(run_dir)) == [2, 4]


def test_the_best_and_the_newest_outlive_a_crash_and_the_newest_is_resumed_from(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str
) -> None:
    """B078: keep 1 and the best, which is the first; nothing in the list is dead."""
    one = saver(keep=1, keep_best=1)
    for step, loss in [(1, 0.1), (2, 0.5), (3, 0.7)]:
        one.save(_tensor(step), {}, resume_at(step).model_copy(update={"loss_last": loss}))
    one.wait()
    found = catalog.survey(run_dir)
    assert _steps(list(found.published)) == [1, 3]
    chosen = catalog.choose(found)
    assert chosen is not None
    assert chosen.checkpoint.step == 3
    assert [row.problem for row in inspect.verify_all(run_dir)] == ["", ""]


def _tensor(step: int) -> dict[str, torch.Tensor]:
    return {"model.w": torch.full((2,), float(step))}


class TestHolds:
    def test_a_pinned_one_stays_until_it_is_unpinned(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str
    ) -> None:
        """B081."""
        one = saver(keep=1)
        pinned = one.save_final(_tensor(1), {}, resume_at(1))
        assert inspect.pin(run_dir, "1") == pinned
        for step in (2, 3):
            one.save_final(_tensor(step), {}, resume_at(step))
        assert _steps(catalog.published(run_dir)) == [1, 3]
        assert [row.is_pinned for row in inspect.list_stored(run_dir)] == [False, True]
        assert inspect.unpin(run_dir, pinned) == pinned
        one.save_final(_tensor(4), {}, resume_at(4))
        assert _steps(catalog.published(run_dir)) == [4]
        assert list((checkpoints_dir(run_dir).parent / HOLDS).iterdir()) == []

    def test_a_step_that_is_not_there_is_refused_with_those_that_are(
        self, run_dir: str, publish: Publish
    ) -> None:
        publish(1)
        publish(3)
        with pytest.raises(MissingError, match=r"no published checkpoint 2: there are those of steps 1, 3"):
            inspect.pin(run_dir, "2")

    def test_of_several_at_one_step_the_newest_is_meant(self, run_dir: str, publish: Publish) -> None:
        older, newer = publish(5, round_=0), publish(5, round_=1)
        assert inspect.find(run_dir, "5") == newer
        assert inspect.find(run_dir, older) == older

    def test_one_that_is_being_read_stays_until_its_reader_has_ended(
        self, run_dir: str, publish: Publish
    ) -> None:
        """B076, variant: an export of checkpoint 1 while newer saves arrive."""
        first, _, newest = publish(1), publish(2), publish(3)
        with holds.reading(run_dir, first):
            assert _retire(run_dir, newest) == ["step-00000002"]
        assert _retire(run_dir, newest) == ["step-00000001"]

    def test_a_reader_that_died_without_a_word_holds_for_its_lease_alone(
        self, run_dir: str, publish: Publish
    ) -> None:
        first, newest = publish(1), publish(2)
        holds.hold(run_dir, first, "reader-0")
        assert _retire(run_dir, newest) == []
        _set_back(run_dir, first, "reader-0", seconds=holds.LEASE_SECONDS + 60)
        assert _retire(run_dir, newest) == ["step-00000001"]

    def test_a_pin_and_a_job_hold_however_old_they_are(self, run_dir: str, publish: Publish) -> None:
        first, second, newest = publish(1), publish(2), publish(3)
        for name, holder in ((first, holds.PIN), (second, "job-abc")):
            holds.hold(run_dir, name, holder)
            _set_back(run_dir, name, holder, seconds=1e8)
        assert _retire(run_dir, newest) == []

    def test_a_holder_that_comes_between_the_look_and_the_deletion_keeps_it(
        self, run_dir: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, newest = publish(1), publish(2)
        unpublish = catalog.unpublish

        def held_just_before(run_dir: str, name: str) -> None:
            holds.hold(run_dir, name, holds.PIN)
            assert isinstance(catalog.read_manifest(run_dir, name), Manifest), "its holder sees it published"
            unpublish(run_dir, name)

        monkeypatch.setattr(retention.catalog, "unpublish", held_just_before)
        assert _retire(run_dir, newest) == []
        assert _steps(catalog.published(run_dir)) == [1, 2]
        assert inspect.verify(run_dir, first) == ""

    def test_a_holder_that_comes_too_late_is_told_and_leaves_nothing(
        self, run_dir: str, publish: Publish
    ) -> None:
        first = publish(1)
        catalog.unpublish(run_dir, first)
        with pytest.raises(MissingError, match="not published any more"):
            inspect.hold(run_dir, first, holds.PIN)
        assert holds.holders(open_storage(run_dir), first, now=None) == ()

    def test_what_a_killed_deleter_left_of_a_held_one_is_published_again(
        self, run_dir: str, publish: Publish
    ) -> None:
        held, not_held = publish(1), publish(2)
        holds.hold(run_dir, held, holds.PIN)
        for name in (held, not_held):
            catalog.unpublish(run_dir, name)
        swept = catalog.sweep_unpublished(run_dir, generation=1, attempt=0, round_=1)
        assert swept == [not_held]
        assert _steps(catalog.published(run_dir)) == [1]


def _retire(run_dir: str, newest: str) -> list[str]:
    """Apply `keep: 1`, the named checkpoint being the newest; returns what was given up, by step."""
    checkpoint = CheckpointId.parse(newest)
    assert checkpoint is not None
    gone = retire(run_dir, catalog.published(run_dir), newest=checkpoint, keep=1, keep_best=0)
    return [name.partition(".")[0] for name in gone]


def _set_back(run_dir: str, name: str, holder: str, *, seconds: float) -> None:
    path = checkpoints_dir(run_dir).parent / HOLDS / name / holder
    written = path.stat().st_mtime - seconds
    os.utime(path, (written, written))
