"""Rounds of the training loop: killed or not, at one width or another, a run trains the same."""

import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from small_tasks import make_config

from workers.checkpointing import catalog
from workers.contract.config import TrainingConfig
from workers.contract.events import EventKind, JobResult, Sample
from workers.contract.launch import LaunchRequest, RankOrder, RoundOrder
from workers.contract.rank_messages import Measured, RankMessage, Ready, Told
from workers.contract.restart import Counters
from workers.loop import train
from workers.progress import Progress
from workers.schedule import learning_rate
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

DROPOUT = {"model__args__net": "dropout", "checkpoint__every_steps": 2, "checkpoint__mode": "sync"}


def make_order(
    run_dir: str, config: TrainingConfig, world: World, round_: int, resume_from: str | None
) -> RankOrder:
    request = LaunchRequest(
        job_id="job",
        name="job",
        generation=0,
        world_size=world.world_size,
        gpus_per_worker=0,
        config=config,
        run_dir=run_dir,
        counters=Counters(),
        version="test",
    )
    return RankOrder(
        request=request,
        round=RoundOrder(
            attempt=0, round=round_, nonce=f"{round_:08x}", resume_from=resume_from, store_address=""
        ),
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.rank,
        node="here",
        device="cpu",
        network_interface="lo",
    )


def ticking() -> Callable[[], float]:
    """A clock on which every look is 10 seconds later, so that every step is due for a sample."""
    looks = iter(range(0, 10**9, 10))
    return lambda: float(next(looks))


def train_round(
    world: World,
    run_dir: str,
    changes: dict[str, Any],
    round_: int = 0,
    resume_from: str | None = None,
    kill_at: int | None = None,
) -> tuple[JobResult, list[RankMessage]]:
    """Train one round; with `kill_at`, the last rank dies by SIGKILL when it has finished that many steps."""
    told: list[RankMessage] = []

    def emit(message: RankMessage) -> None:
        told.append(message)
        is_late = isinstance(message, Measured) and message.sample.step == kill_at
        if is_late and world.rank == world.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    order = make_order(run_dir, make_config(**changes), world, round_, resume_from)
    return train(order, world, emit, clock=ticking()), told


def samples(told: list[RankMessage]) -> list[Sample]:
    return [message.sample for message in told if isinstance(message, Measured)]


def newest(run_dir: Path) -> str | None:
    found = catalog.choose(catalog.survey(str(run_dir)))
    return str(found.checkpoint) if found else None


def digests(run_dir: Path, name: str) -> dict[str, list[str]]:
    (manifest,) = [m for m in catalog.published(str(run_dir)) if str(m.checkpoint) == name]
    return {tensor: [chunk.digest for chunk in s.chunks] for tensor, s in manifest.tensors.items()}


def killed_then_resumed(
    ranks: "Launcher", run_dir: Path, changes: dict[str, Any], kill_at: int, widths: tuple[int, int] = (2, 2)
) -> tuple[JobResult, list[RankMessage]]:
    first = ranks.start(train_round, widths[0], str(run_dir), changes, 0, None, kill_at).outcomes()
    assert first[-1].exit_code == -signal.SIGKILL
    assert all(outcome.error_type is not None for outcome in first[:-1])
    ((result, told), *_) = ranks(train_round, widths[1], str(run_dir), changes, 1, newest(run_dir))
    return result, told


@pytest.mark.parametrize(
    ("engine", "precision"),
    [
        ({"engine__kind": "ddp"}, "bf16"),
        ({"engine__zero_stage": 2}, "fp32"),
        ({"engine__zero_stage": 3}, "fp32"),
        ({"engine__zero_stage": 3}, "bf16"),
    ],
)
def test_a_killed_run_ends_bit_for_bit_as_one_that_is_not(
    ranks: "Launcher", tmp_path: Path, engine: dict[str, Any], precision: str
) -> None:
    """B050, B053, B054: weights, moments, loss, rate and the ledger, with dropout on."""
    changes = DROPOUT | engine | {"train__precision__params": precision}
    ((whole, told), *_) = ranks(train_round, 2, str(tmp_path / "whole"), changes)
    result, resumed_told = killed_then_resumed(ranks, tmp_path / "killed", changes, kill_at=3)
    assert isinstance(resumed_told[0], Ready)
    assert resumed_told[0].step == 2
    assert (result.loss_first, result.loss_last) == (whole.loss_first, whole.loss_last)
    assert (result.final_step, result.tokens) == (whole.final_step, whole.tokens)
    assert (result.samples_repeated, result.samples_missing) == (0, 0)
    assert digests(tmp_path / "killed", result.checkpoint) == digests(tmp_path / "whole", whole.checkpoint)
    expected = {s.step: (s.loss, s.learning_rate, s.grad_norm) for s in samples(told)}
    found = {s.step: (s.loss, s.learning_rate, s.grad_norm) for s in samples(resumed_told)}
    assert found == {step: expected[step] for step in (3, 4, 5, 6)}


@pytest.mark.parametrize("kill_at", [1, 2, 5, 6])
def test_wherever_a_run_is_killed_it_ends_the_same(ranks: "Launcher", tmp_path: Path, kill_at: int) -> None:
    """B050: before the first checkpoint, right after one, and after the last step; saves are asynchronous here."""
    changes = DROPOUT | {"checkpoint__mode": "async"}
    ((whole, _), *_) = ranks(train_round, 2, str(tmp_path / "whole"), changes)
    result, _ = killed_then_resumed(ranks, tmp_path / "killed", changes, kill_at)
    assert result.loss_last == whole.loss_last
    assert (result.samples_repeated, result.samples_missing) == (0, 0)
    assert digests(tmp_path / "killed", result.checkpoint) == digests(tmp_path / "whole", whole.checkpoint)


def test_held_out_samples_are_measured_alike_at_every_width_and_disturb_nothing(
    ranks: "Launcher", tmp_path: Path
) -> None:
    """B033, B034: each of the 21 counts once, more ranks than some of them get; training is as without a look."""
    held_out = DROPOUT | {"validation__ratio": 0.021, "validation__max_sequences": 21}
    often, never = ({"validation__every_steps": steps} for steps in (2, 100))
    runs = {
        (width, name): ranks(train_round, width, str(tmp_path / f"{width}-{name}"), held_out | looks)
        for width in (1, 2, 4)
        for name, looks in (("often", often), ("never", never))
    }
    told = {
        key: [
            (message.step, message.data["loss"])
            for message in outcomes[0][1]
            if isinstance(message, Told) and message.kind is EventKind.EVALUATED
        ]
        for key, outcomes in runs.items()
    }
    assert [step for step, _ in told[1, "often"]] == [2, 4, 6]
    assert [step for step, _ in told[1, "never"]] == [6], "the last step is always measured"
    for width in (1, 2, 4):
        (result, _), *others = runs[width, "often"]
        assert result.validation_loss == told[width, "often"][-1][1]
        assert all(other.validation_loss == result.validation_loss for other, _ in others)
        assert result.loss_last == runs[width, "never"][0][0].loss_last
    # Dropout draws differ between widths, so compare what has not been trained with it: one net, one look.
    plain = {"validation__ratio": 0.021, "validation__max_sequences": 21, "checkpoint__mode": "sync"}
    losses = [
        ranks(train_round, width, str(tmp_path / f"plain-{width}"), plain)[0][0].validation_loss
        for width in (1, 2, 4)
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("widths", [(2, 3), (3, 1)])
def test_a_run_goes_on_at_another_width(ranks: "Launcher", tmp_path: Path, widths: tuple[int, int]) -> None:
    """B007, B052: the same samples, the same rates, each sample once."""
    changes = {"checkpoint__every_steps": 2, "checkpoint__mode": "sync", "train__batch__micro": 2}
    ((whole, told), *_) = ranks(train_round, 2, str(tmp_path / "whole"), changes)
    result, resumed_told = killed_then_resumed(ranks, tmp_path / "other", changes, 3, widths)
    assert (result.samples_repeated, result.samples_missing) == (0, 0)
    assert result.tokens == whole.tokens
    rates = {s.step: s.learning_rate for s in samples(told)}
    assert {s.step: s.learning_rate for s in samples(resumed_told)} == {s: rates[s] for s in (3, 4, 5, 6)}
    losses = [s.loss for s in samples(told)]
    assert [s.loss for s in samples(resumed_told)] == pytest.approx(losses[2:], rel=1e-5)


def test_samples_cover_every_index_and_tell_the_scheduled_rate(ranks: "Launcher", tmp_path: Path) -> None:
    config = make_config()
    for rank, (result, told) in enumerate(ranks(train_round, 2, str(tmp_path), {})):
        found = samples(told)
        assert [s.first_index for s in found] == [0, *(s.end_index for s in found[:-1])]
        assert found[-1].end_index == 60
        assert [s.learning_rate for s in found] == [learning_rate(step, config.train) for step in range(6)]
        assert sum(s.tokens for s in found) == result.tokens
        assert all(s.rank == rank and s.steps == 1 and s.rss_bytes > 0 for s in found)
        assert found[0].memory_bytes.keys() == {"parameters", "gradients", "optimizer_state", "buffers"}


def train_with_a_still_clock(world: World, run_dir: str) -> list[RankMessage]:
    told: list[RankMessage] = []
    train(make_order(run_dir, make_config(), world, 0, None), world, told.append, clock=lambda: 0.0)
    return told


def test_between_the_first_and_the_last_step_samples_wait_for_their_second(
    ranks: "Launcher", tmp_path: Path
) -> None:
    (told,) = ranks(train_with_a_still_clock, 1, str(tmp_path))
    assert [(s.step, s.steps, s.first_index, s.end_index) for s in samples(told)] == [
        (1, 1, 0, 10),
        (6, 5, 10, 60),
    ]


def test_a_finished_run_that_is_started_again_only_proves_it(ranks: "Launcher", tmp_path: Path) -> None:
    """Killed between its last checkpoint and its last word, a run has nothing left to train."""
    ((whole, _), *_) = ranks(train_round, 2, str(tmp_path), DROPOUT)
    ((again, told), *_) = ranks(train_round, 2, str(tmp_path), DROPOUT, 1, whole.checkpoint)
    assert samples(told) == []
    assert again.model_dump(exclude={"seconds"}) == whole.model_dump(exclude={"seconds"})


def train_to_the_error(world: World, run_dir: str, changes: dict[str, Any], resume_from: str | None) -> Any:
    progress = Progress()
    order = make_order(run_dir, make_config(**changes), world, 1, resume_from)
    try:
        train(order, world, lambda message: None, progress)
    except Exception as error:
        return type(error).__name__, str(error), progress.phase, progress.step
    return None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nan_ends_the_run_in_its_step_and_is_never_saved(
    ranks: "Launcher", tmp_path: Path, precision: str
) -> None:
    """B118."""
    changes = DROPOUT | {"model__args__spoil_from": 3, "train__precision__params": precision}
    for result in ranks(train_to_the_error, 2, str(tmp_path), changes, None):
        name, message, phase, step = result
        assert (name, phase, step) == ("NonFiniteError", "step", 4)
        assert message.startswith("loss nan")
    assert [manifest.checkpoint.step for manifest in catalog.published(str(tmp_path))] == [2]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"train__seed": 1}, "train.seed was 0 in the checkpoint and is 1"),
        ({"train__batch__global_sequences": 12}, "the next global index was 20 in the checkpoint and is 24"),
        (
            {"model__args__digest": "other rows"},
            "the data's digest was rows in the checkpoint and is other rows",
        ),
    ],
)
def test_a_checkpoint_of_other_samples_is_refused(
    ranks: "Launcher", tmp_path: Path, other: dict[str, Any], named: str
) -> None:
    ranks.start(train_round, 1, str(tmp_path), DROPOUT, 0, None, 3).outcomes()
    (result,) = ranks(train_to_the_error, 1, str(tmp_path), DROPOUT | other, newest(tmp_path))
    name, message, phase, _ = result
    assert (name, phase) == ("ConfigError", "restore")
    assert named in message


def test_nothing_to_train_is_a_config_error(ranks: "Launcher", tmp_path: Path) -> None:
    """B019."""
    changes = {"model__args__net": "frozen"}
    for name, message, phase, step in ranks(train_to_the_error, 2, str(tmp_path), changes, None):
        assert (name, phase, step) == ("ConfigError", "start", None)
        assert "0 trainable parameters" in message


def test_training_checkpoints_are_named_by_finished_steps(ranks: "Launcher", tmp_path: Path) -> None:
    """B064: the step alone says when, so no rank enters a save that the others do not."""
    changes = DROPOUT | {"train__steps": 5, "checkpoint__keep": 9}
    ranks(train_round, 2, str(tmp_path), changes)
    manifests = catalog.published(str(tmp_path))
    assert [manifest.checkpoint.step for manifest in manifests] == [2, 4, 5]
    assert [manifest.resume.trained for manifest in manifests] == [((0, 20),), ((0, 40),), ((0, 50),)]
    assert all(later.parent == str(earlier.checkpoint) for earlier, later in pairwise(manifests))
