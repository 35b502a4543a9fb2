"""First values of a module: built or given by name, one at a time, equal on all ranks, or refused."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, Trainer, assert_equal_runs, local, reference
from small_tasks import NetTask, Run, make_config, make_task
from torch import nn

from workers.engines import build_engine
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

WHOLE = [
    ENGINES[name] for name in ("ddp", "deepspeed-0", "deepspeed-1", "deepspeed-2")
]  # hold all weights anyway


def train_deferred(world: World, runs: list[tuple[str, dict[str, Any]]]) -> list[tuple[Run, list[str], int]]:
    found = []
    for net, changes in runs:
        task = make_task(net, deferred=True)
        found.append((Trainer(world, task, changes).run(), task.asked, task.most_alive))
    return found


def test_weights_that_come_one_by_one_train_as_those_that_were_built(ranks: "Launcher") -> None:
    """B047: the buffers are real; no rank that shards holds a second whole parameter, tied ones are asked for once."""
    nets = ("tied", "shared_layer", "odd_sizes", "empty_layer", "uneven_frozen", "table")
    runs = [(net, changes) for net in nets for changes in ENGINES.values()]
    for results in ranks(train_deferred, 3, runs):
        for (net, changes), (run, asked, most_alive) in zip(runs, results, strict=True):
            assert_equal_runs(run, reference(net))
            assert asked == list(dict.fromkeys(asked)) == list(run.weights)
            assert most_alive == 1 or changes in WHOLE


def go_on_without_first_weights(world: World, changes: dict[str, Any]) -> list[str]:
    old = Trainer(world, make_task("tied"), changes)
    new = Trainer(world, make_task("tied", deferred=True), changes, will_load=True)
    old.step(0)
    for name, tensor in old.engine.state().items():
        local(new.engine.state()[name]).copy_(local(tensor))
    new.engine.after_load()
    assert new.step(1) == old.step(1)
    return new.task.asked


def test_no_first_weight_is_made_where_a_checkpoint_follows(ranks: "Launcher") -> None:
    for changes in ENGINES.values():
        assert ranks(go_on_without_first_weights, 2, dict(changes)) == [[], []]


def net_with_a_frozen_block_in_bf16() -> nn.Module:
    net = make_task("uneven_frozen").build()
    net.blocks[1].bfloat16()
    return net


def train_half_frozen(world: World, engines: list[dict[str, Any]]) -> list[Any]:
    found = []
    for changes in engines:
        trainer = Trainer(world, NetTask(net_with_a_frozen_block_in_bf16), changes)
        losses = trainer.run().losses
        found.append((losses, trainer.engine.state()["model.blocks.1.up.weight"].dtype))
    return found


def test_frozen_weights_keep_the_dtype_that_they_came_in(ranks: "Launcher") -> None:
    """B020."""
    ((ddp, dtype), *others), _ = ranks(train_half_frozen, 2, [dict(changes) for changes in ENGINES.values()])
    assert dtype == torch.bfloat16
    for losses, other in others:
        assert other == torch.bfloat16
        assert losses == pytest.approx(ddp, rel=1e-6)


def build_only(world: World, net: str, drift: bool) -> None:
    task = make_task(net)
    if drift:
        make = task.net
        task.net = lambda: make().apply(lambda part: [p.data.add_(world.rank) for p in part.parameters()])
    build_engine(make_config(), task, world)


@pytest.mark.parametrize(
    ("net", "drift", "message"),
    [
        ("frozen", False, "0 trainable parameters"),
        ("plain", True, "ranks [1] built other initial weights than rank 0"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused(
    ranks: "Launcher", net: str, drift: bool, message: str
) -> None:
    """B019."""
    for outcome in ranks.start(build_only, 2, net, drift).outcomes():
        assert outcome.error_type == "ConfigError"
        assert message in outcome.error


def build_wrong(world: World, change: str) -> None:
    task = make_task("table", deferred=True)
    if change == "shape":
        task.initial_weight = lambda name: torch.zeros(3)  # type: ignore[attr-defined]
    if change in ("buffer", "not deferred"):
        task = make_task("table" if change == "buffer" else "plain")
        net = task.net
        task.net = lambda: net().to("meta")
    build_engine(make_config(), task, world)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shape", "initial_weight('blocks.0.norm.weight') has shape [3], not [6]"),
        ("buffer", "build() left the buffer table on the meta device"),
        ("not deferred", "build() left the parameter blocks.0.norm.weight on the meta device"),
    ],
)
def test_weights_that_nobody_fills_are_refused(ranks: "Launcher", change: str, message: str) -> None:
    (outcome,) = ranks.start(build_wrong, 1, change).outcomes()
    assert outcome.error_type == "ConfigError"
    assert message in outcome.error
