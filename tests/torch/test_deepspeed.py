"""What DeepSpeed alone has: state in host memory, hpZ, tuning of its own; and the train it trains is still the same."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, Trainer, assert_equal_runs, reference, train_all
from small_tasks import make_task

from workers.engines.flat_shard import FlatShard, boxes_of
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

NETS = ("plain", "odd_sizes", "tied", "uneven_frozen")
MICRO = {"train__batch__micro": 2}
OPTIMIZER = {"engine__offload": {"optimizer": "cpu"}}
BOTH = {"engine__offload": {"optimizer": "cpu", "params": "cpu"}}
TUNED = {
    "engine__raw": {
        "zero_optimization": {"reduce_bucket_size": 200, "stage": "auto"},
        "fp16": {"enabled": False},
    }
}


@pytest.mark.parametrize(
    ("engine", "more", "world_size"),
    [
        ("deepspeed-1", OPTIMIZER, 2),
        ("deepspeed-2", OPTIMIZER, 3),
        ("deepspeed-3", BOTH, 2),
        ("deepspeed-3", {"engine__shard_group_size": 2}, 4),
        ("deepspeed-2", TUNED, 2),
    ],
)
def test_offload_groups_and_tuning_change_nothing_of_the_training(
    ranks: "Launcher", engine: str, more: dict[str, Any], world_size: int
) -> None:
    runs = [({"net": net}, {**ENGINES[engine], **more, **MICRO}) for net in NETS]
    for results in ranks(train_all, world_size, runs, seconds=120):
        for net, run in zip(NETS, results, strict=True):
            assert_equal_runs(run, reference(net))


def held(world: World, changes: dict[str, Any]) -> dict[str, int]:
    trainer = Trainer(world, make_task("plain"), changes)
    trainer.step(0)
    return dict(trainer.engine.memory())


def test_a_stage_holds_what_it_promises(ranks: "Launcher") -> None:
    """Rajbhandari et al. 2020, section 5: optimizer state in parts from stage 1 on, parameters at stage 3."""
    size = sum(parameter.numel() for parameter in make_task("plain").build().parameters())
    steps = 4 * sum(1 for _ in make_task("plain").build().parameters())
    bf16 = {"train__precision__params": "bf16"}
    for stage, parameters in ((1, 2 * size), (2, 2 * size), (3, size)):
        for found in ranks(held, 2, ENGINES[f"deepspeed-{stage}"] | bf16):
            assert found["parameters"] == pytest.approx(parameters, rel=0.03), "but for padding"
            assert found["optimizer_state"] == pytest.approx(6 * size + steps, rel=0.03)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 4), (5, 1, 2)])
def test_any_interval_of_a_tensor_is_a_few_boxes_in_order(shape: tuple[int, ...]) -> None:
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    for start in range(whole.numel()):
        for stop in range(start, whole.numel() + 1):
            boxes = list(boxes_of(shape, start, stop - start))
            assert len(boxes) <= max(1, 2 * len(shape) - 1)
            found = []
            for offsets, sizes, first in boxes:
                part = whole
                for dim, (offset, length) in enumerate(zip(offsets, sizes, strict=True)):
                    part = part.narrow(dim, offset, length)
                assert part.flatten()[0] == first
                found += part.flatten().tolist()
            assert found == list(range(start, stop))


def test_a_shard_is_a_place_and_no_number() -> None:
    shard = FlatShard(torch.arange(5.0), (3, 4), 2)
    assert shard.shape == (3, 4)
    with pytest.raises(TypeError, match="only this rank's part"):
        torch.neg(shard)
