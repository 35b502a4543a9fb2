"""What is planned is what engines hold: to the byte where the arithmetic is theirs, and in what direction where it is not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from engine_runs import ENGINES, LOW, Trainer
from small_tasks import make_config, make_task

from workers.contract.config import TrainingConfig
from workers.engines.precision import torch_dtype
from workers.planner.partition import Static, static
from workers.planner.shape import read_shape
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

CATEGORIES = ("parameters", "gradients", "optimizer_state", "buffers")
NETS = ("plain", "tied", "odd_sizes", "uneven_frozen")


def held(world: World, cells: list[tuple[str, Mapping[str, Any]]]) -> list[dict[str, int]]:
    found = []
    for net, changes in cells:
        trainer = Trainer(world, make_task(net), changes)
        trainer.step(0)
        found.append(dict(trainer.engine.memory()))
    return found


def planned(net: str, config: TrainingConfig, world_size: int, rank: int) -> Static:
    task = make_task(net)
    module = task.build()
    return static(
        read_shape(module, task.blocks(module)),
        config.engine,
        config.train.optimizer,
        compute_bytes=torch_dtype(config.train.precision.params).itemsize,
        world_size=world_size,
        rank=rank,
    )


@pytest.mark.parametrize("world_size", [2, 3])
def test_static_bytes_are_what_the_engines_hold(ranks: "Launcher", world_size: int) -> None:
    """B110."""
    cells = [
        (net, dict(changes) | {"train__precision__params": precision})
        for precision, engines in (("fp32", ENGINES), ("bf16", LOW))
        for changes in engines.values()
        for net in NETS
    ]
    by_rank = ranks(held, world_size, cells, seconds=120)
    for position, (net, changes) in enumerate(cells):
        config = make_config(**changes)
        for rank, found in enumerate(by_rank):
            plan = planned(net, config, world_size, rank)
            expected = {what: getattr(plan, what) for what in CATEGORIES}
            assert {what: found[position][what] for what in CATEGORIES} == expected, (net, changes, rank)
