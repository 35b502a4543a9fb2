"""Half precision: the loss scale of fp16, batch statistics that stay fp32, and compiled blocks."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, HALF, LOW, Trainer, assert_equal_runs, reference, train_all, whole
from small_tasks import make_config, make_task, reference_run

from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

BF16 = {"train__precision__params": "bf16"}
FP16 = {"train__precision__params": "fp16", "train__batch__micro": 2}
HYBRID = ENGINES["fsdp-3"] | {"engine__shard_group_size": 2}


def test_fp16_is_the_same_fp16_under_every_engine(ranks: "Launcher") -> None:
    low = {"train__precision__loss_scale": {"initial": 256.0}}
    runs = [({"net": "tied"}, changes | FP16 | low) for changes in (*HALF.values(), HYBRID)]
    (results, *_) = ranks(train_all, 4, runs)
    for run in results:
        assert run.losses == pytest.approx(reference("tied").losses, rel=0.02)
        assert run.norms == pytest.approx(reference("tied").norms, rel=0.02)
        assert run.losses == pytest.approx(results[0].losses, rel=2e-3)


def overflow_and_grow(world: World, changes: dict[str, Any]) -> Any:
    trainer = Trainer(world, make_task("plain"), changes)
    found, weights = [], trainer.weights()
    for step in range(8):
        output = trainer.step(step)
        state = trainer.engine.state()
        same = all(weight.equal(weights[name]) for name, weight in trainer.weights().items())
        assert same == output.is_skipped
        assert state["optimizer.head.weight.step"] == sum(not skipped for skipped, *_ in found) + (not same)
        weights = trainer.weights()
        found.append((output.is_skipped, float(state["scaler.scale"]), int(state["scaler.good_steps"])))
    return found


def test_a_step_that_overflows_is_left_out_and_the_scale_moves_alike_on_all_ranks(ranks: "Launcher") -> None:
    rule = {"train__precision__loss_scale": {"initial": 2.0**20, "growth_steps": 2}}
    traces = [trace for c in HALF.values() for trace in ranks(overflow_and_grow, 2, dict(c) | FP16 | rule)]
    assert all(trace == traces[0] for trace in traces)
    skips = [is_skipped for is_skipped, *_ in traces[0]]
    assert skips[0]
    assert skips.count(False) >= 2
    first_taken = skips.index(False)
    assert traces[0][first_taken - 1][1] == 2.0 ** (20 - first_taken)
    assert traces[0][first_taken][2] == 1


def save_and_load_the_scale(world: World, changes: dict[str, Any]) -> list[tuple[float, int]]:
    old, new = (Trainer(world, make_task("plain"), changes) for _ in range(2))
    old.engine.state()["scaler.scale"].fill_(1024.0)
    old.engine.after_load()
    old.step(0)
    saved = {name: old.engine.state()[name].clone() for name in ("scaler.scale", "scaler.good_steps")}
    after_save = old.engine.state()
    trace = [(float(after_save["scaler.scale"]), int(after_save["scaler.good_steps"]))]
    old.step(1)
    for trainer in (new, old):
        for name, value in saved.items():
            trainer.engine.state()[name].copy_(value)
        trainer.engine.after_load()
        state = trainer.engine.state()
        trace.append((float(state["scaler.scale"]), int(state["scaler.good_steps"])))
    return trace


def test_saving_and_loading_leave_the_scale_as_it_was(ranks: "Launcher") -> None:
    """B043: in the engine that saved, in a fresh one, and in the same one after it went on."""
    for changes in HALF.values():
        assert ranks(save_and_load_the_scale, 1, dict(changes) | FP16) == [[(1024.0, 1)] * 3]


def overflow_for_ever(world: World, changes: dict[str, Any]) -> tuple[list[bool], str | None]:
    trainer = Trainer(world, make_task("plain", scale=1e12), changes)
    outputs = [trainer.step(step) for step in range(4)]
    return [output.is_finite for output in outputs], outputs[-1].reason


def test_endless_overflow_ends_with_its_reason(ranks: "Launcher") -> None:
    """B045."""
    rule = {"train__precision__loss_scale": {"initial": 2.0, "max_skipped": 3}}
    for flags, reason in ranks(overflow_for_ever, 2, dict(ENGINES["fsdp-3"]) | FP16 | rule):
        assert flags == [True, True, True, False]
        assert reason is not None
        assert "4 steps in a row overflowed in fp16, the last one with a loss scale of 1" in reason


def batch_statistics(world: World, runs: list[dict[str, Any]]) -> list[list[torch.Tensor]]:
    found = []
    for changes in runs:
        trainer = Trainer(world, make_task("statistics"), changes)
        trainer.run()
        state = trainer.engine.state()
        found.append(
            [state[f"buffer.statistics.{key}"].clone() for key in ("running_mean", "running_var")]
            + [
                state["buffer.statistics.num_batches_tracked"].clone(),
                whole(state["model.statistics.weight"]),
            ]
        )
    return found


def test_running_statistics_stay_fp32_and_are_those_of_the_whole_batch(ranks: "Launcher") -> None:
    """B048, B049: under bf16 and fp16, the same on every rank."""
    steps = {"train__steps": 30}
    task = make_task("statistics")
    reference_run(task, make_config(**steps))
    assert task.module is not None
    expected = task.module.statistics
    fp16 = FP16 | {"train__batch__micro": "auto", "train__precision__loss_scale": {"initial": 256.0}}
    runs = [dict(changes) | steps | BF16 for changes in LOW.values()]
    runs += [dict(changes) | steps | fp16 for changes in HALF.values()]
    first, second = ranks(batch_statistics, 2, runs)
    for one, other in zip(first, second, strict=True):
        mean, variance, batches, scale = one
        assert [tensor.dtype for tensor in one] == [torch.float32, torch.float32, torch.int64, torch.float32]
        assert all(tensor.equal(same) for tensor, same in zip(one, other, strict=True))
        assert batches == 30
        torch.testing.assert_close(mean, expected.running_mean, rtol=0.01, atol=0.005)
        torch.testing.assert_close(variance, expected.running_var, rtol=0.05, atol=0.0)
        assert not scale.equal(torch.ones(4))


def move_statistics(world: World, changes: dict[str, Any]) -> tuple[list[int], bool]:
    """Train 3 sequences on 2 ranks by ones: the second micro-batch of rank 1 counts nothing. Then spoil a step."""
    task = make_task("statistics", spoil_from=2)
    trainer = Trainer(world, task, changes)
    assert task.module is not None
    counts = [int(trainer.step(0).is_finite), int(task.module.statistics.num_batches_tracked)]
    before = [buffer.clone() for buffer in task.module.buffers()]
    counts.append(int(trainer.step(1).is_finite))
    return counts, all(one.equal(other) for one, other in zip(before, task.module.buffers(), strict=True))


def test_statistics_move_with_samples_that_count_in_steps_that_are_taken(ranks: "Launcher") -> None:
    small = {"train__batch__global_sequences": 3, "train__batch__micro": 1}
    for changes in ENGINES.values():
        first, second = ranks(move_statistics, 2, dict(changes) | small)
        assert first == ([1, 2, 0], True)
        assert second == ([1, 1, 0], True)


def test_compiled_blocks_train_as_plain_ones(ranks: "Launcher") -> None:
    """By block, with the operations kept for backward chosen inside what is compiled."""
    compiled = {"engine__compile": True, "engine__activation_checkpointing": "selective"}
    for (run,) in ranks(train_all, 2, [({"net": "plain"}, ENGINES["fsdp-3"] | compiled)], seconds=240):
        assert_equal_runs(run, reference("plain"))
