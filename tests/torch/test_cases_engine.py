"""Cases from the field that need more than a net and a step: adapters and their rate, epochs, overflow, exports, resumes."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, LOW, Trainer, assert_equal_runs
from recorded_rows import readings
from safetensors.torch import load_file
from sharded_states import make_saver, resume_at
from small_tasks import (
    WIDTH,
    AdapterBlock,
    Block,
    Net,
    NetTask,
    Rows,
    Run,
    make_config,
    make_task,
    reference_run,
)
from test_loop import samples, train_round, train_to_the_error
from torch import nn

from workers.checkpointing.load import load
from workers.data.order import sample_ids
from workers.export import export
from workers.random_streams import seed_streams
from workers.schedule import learning_rate
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

SAVES = {"checkpoint__every_steps": 2, "checkpoint__mode": "sync"}


class SteadyAdapterBlock(AdapterBlock):
    """Adapters without dropout, so that a run can be compared with one process."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Block.forward(self, x) + self.expand(self.reduce(x))


def steady_adapters() -> nn.Module:
    net = Net([SteadyAdapterBlock() for _ in range(3)])
    net.head.requires_grad_(requires_grad=False)
    return net


def train_adapters(world: World, runs: list[dict[str, Any]]) -> list[Run]:
    return [Trainer(world, NetTask(steady_adapters), changes).run() for changes in runs]


def test_adapters_alone_follow_the_schedule_under_every_engine(ranks: "Launcher") -> None:
    """B017: with decay set, nothing but matrices is trained, so one group is empty; the warm-up reaches the adapters."""
    warm_up = {"train__schedule__warmup_steps": 4, "train__batch__micro": 2}
    rules = [warm_up | {"train__optimizer__name": name} for name in ("adamw", "sgd")]
    expected = [reference_run(NetTask(steady_adapters), make_config(**rule)) for rule in rules]
    runs = [dict(changes) | rule for changes in ENGINES.values() for rule in rules]
    for results in ranks(train_adapters, 2, runs):
        for i, run in enumerate(results):
            assert_equal_runs(run, expected[i % 2])


def recorded(directory: Path, num_rows: int, **changes: Any) -> dict[str, Any]:
    return {
        "model__target": "recorded_rows:make_recorded_task",
        "model__args": {"directory": str(directory), "num_rows": num_rows},
        "train__optimizer__name": "sgd",
        "train__batch__micro": 1,
        "validation__ratio": 0.0,
        **SAVES,
        **changes,
    }


def trained_over_epochs(changes: dict[str, Any], num_rows: int) -> list[float]:
    """Return the losses of one process that takes the next rows of an endless row of epochs in each step."""
    config = make_config(**changes)
    train = config.train
    size = train.batch.global_sequences
    seed_streams(train.seed)
    task = make_task("plain")
    module = task.build()
    groups = [[p for p in module.parameters() if p.ndim >= 2], [p for p in module.parameters() if p.ndim < 2]]
    decays = (train.optimizer.weight_decay, 0.0)
    optimizer = torch.optim.SGD(
        [{"params": group, "weight_decay": decay} for group, decay in zip(groups, decays, strict=True)],
        lr=1.0,
        momentum=train.optimizer.betas[0],
    )
    losses = []
    for step in range(train.steps):
        ids = sample_ids(range(step * size, (step + 1) * size), num_samples=num_rows, seed=train.seed)
        batch = Rows().batch(ids.tolist())
        optimizer.zero_grad()
        loss = task.loss_sum(module, batch) / task.num_tokens(batch)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, train)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("global_sequences", "steps"), [(4, 5), (16, 3)])
def test_a_step_takes_the_next_rows_whatever_the_epoch(
    ranks: "Launcher", tmp_path: Path, global_sequences: int, steps: int
) -> None:
    """B038: 10 rows an epoch by ones, 4 or 16 of them a step: an epoch's end cuts no step short and drops no row.

    Every row of two epochs (of almost five) is trained as often as that, each step is one update at one rate, and a
    gradient is of the rows of its own step alone.
    """
    clip = {"train__grad_clip": None, "train__steps": steps}
    changes = recorded(
        tmp_path / "ids", 10, train__batch__global_sequences=global_sequences, engine__kind="ddp", **clip
    )
    ((result, told), *_) = ranks(train_round, 1, str(tmp_path / "run"), changes)
    found = samples(told)
    plain = {"train__batch__global_sequences": global_sequences, "train__optimizer__name": "sgd", **clip}
    assert [s.loss for s in found] == pytest.approx(trained_over_epochs(plain, 10), rel=1e-5)
    config = make_config(**changes)
    assert [s.learning_rate for s in found] == [learning_rate(step, config.train) for step in range(steps)]
    trained = Counter(chain(*chain(*readings(tmp_path / "ids"))))
    assert trained == Counter(
        sample_ids(range(steps * global_sequences), num_samples=10, seed=config.train.seed).tolist()
    )
    assert max(trained.values()) - min(trained.values()) <= 1
    assert (result.samples_repeated, result.samples_missing) == (0, 0)


def test_a_loss_that_always_overflows_ends_the_run_with_that_reason(
    ranks: "Launcher", tmp_path: Path
) -> None:
    """B045: after as many skipped steps as the job file allows; such an error is the user's, and never retried."""
    changes = {
        "model__args__scale": 1e12,
        "engine__kind": "ddp",
        "train__steps": 20,
        "train__precision": {"params": "fp16", "loss_scale": {"initial": 2.0, "max_skipped": 3}},
    }
    for result in ranks(train_to_the_error, 2, str(tmp_path), changes, None):
        name, message, phase, step = result
        assert (name, phase, step) == ("NonFiniteError", "step", 4)
        assert "4 steps in a row overflowed in fp16" in message
        assert "the last one with a loss scale of 1" in message


def train_empty_layers(world: World, run_dir: str, engines: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {
        name: train_round(world, f"{run_dir}/{name}", changes)[0].checkpoint
        for name, changes in engines.items()
    }


def test_a_weight_without_elements_keeps_its_shape_in_the_export(ranks: "Launcher", tmp_path: Path) -> None:
    """B026."""
    common = {"model__args__net": "empty_layer", "train__steps": 2, "checkpoint__mode": "sync"}
    engines = {name: dict(changes) | common for name, changes in ENGINES.items()}
    checkpoints, _ = ranks(train_empty_layers, 2, str(tmp_path), engines)
    for name, checkpoint in checkpoints.items():
        where = export(
            str(tmp_path / name), checkpoint, make_config(**engines[name]), tmp_path / f"{name}-export"
        ).export_path
        exported = load_file(where / "model.safetensors")
        plain = make_task("empty_layer").build().state_dict()
        assert {n: t.shape for n, t in exported.items()} == {n: t.shape for n, t in plain.items()}, name
        assert exported["blocks.0.none.weight"].shape == (0, WIDTH)


def save_a_table(world: World, run_dir: str, engines: dict[str, dict[str, Any]]) -> dict[str, str]:
    names = {}
    for engine, changes in engines.items():
        trainer = Trainer(world, make_task("table"), changes)
        trainer.step(0)
        saver = make_saver(world, f"{run_dir}/{engine}")
        names[engine] = saver.save_final(trainer.engine.state(), trainer.engine.aliases(), resume_at(1))
    return names


def go_on_with_a_table(
    world: World, run_dir: str, engines: dict[str, dict[str, Any]], names: dict[str, str]
) -> dict[str, Any]:
    found = {}
    for engine, changes in engines.items():
        trainer = Trainer(world, make_task("table", deferred=True), changes, will_load=True)
        load(f"{run_dir}/{engine}", names[engine], trainer.engine.state())
        trainer.engine.after_load()
        output = trainer.step(1)
        assert trainer.task.module is not None
        found[engine] = (output.loss, trainer.task.module.table.clone(), int(trainer.task.module.counter))
    return found


def test_a_table_of_the_constructor_is_there_after_a_resume(ranks: "Launcher", tmp_path: Path) -> None:
    """B047: fp32 on every rank, under bf16, where weights come from the checkpoint and the table from nowhere else."""
    engines = {name: dict(changes) | {"train__precision__params": "bf16"} for name, changes in LOW.items()}
    names, *_ = ranks(save_a_table, 4, str(tmp_path), engines)
    table = make_task("table").build().table
    for found in ranks(go_on_with_a_table, 4, str(tmp_path), engines, names):
        for loss, restored, counter in found.values():
            assert restored.equal(table)
            assert counter == 5
            assert loss == pytest.approx(found["ddp"][0], rel=2e-3)
