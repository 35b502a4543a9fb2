"""Where shards lie: in groups of ranks, in host memory, and what is gathered ahead of its use."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from engine_runs import ENGINES, Trainer, assert_equal_runs, local, reference, train_all
from sharded_states import gathered, make_saver, resume_at, same
from small_tasks import NETS, Block, make_config, make_task
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp_internals

from workers.checkpointing.load import load
from workers.engines import build_engine
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

HYBRID = ENGINES["fsdp-3"] | {"engine__shard_group_size": 2}
OFFLOAD = ENGINES["fsdp-3"] | {"engine__offload": {"params": "cpu", "optimizer": "cpu"}}
BF16 = {"train__precision__params": "bf16"}
FP16 = {"train__precision__params": "fp16", "train__precision__loss_scale": {"initial": 512.0}}


def test_groups_that_shard_train_every_net_as_one_process_does(ranks: "Launcher") -> None:
    """B040, B041: copies of a shard count once in the norm."""
    runs = [({"net": net, "deferred": net == "tied"}, HYBRID | {"train__batch__micro": 1}) for net in NETS]
    for results in ranks(train_all, 4, runs):
        for net, run in zip(NETS, results, strict=True):
            assert_equal_runs(run, reference(net))


def test_offloaded_shards_train_as_resident_ones(ranks: "Launcher") -> None:
    nets = ("tied", "odd_sizes", "uneven_frozen")
    runs = [({"net": net, "deferred": True}, OFFLOAD | {"train__batch__micro": 2}) for net in nets]
    runs += [({"net": "plain"}, changes | BF16) for changes in (OFFLOAD, ENGINES["fsdp-3"])]
    for *results, offloaded, resident in ranks(train_all, 3, runs):
        for net, run in zip(nets, results, strict=True):
            assert_equal_runs(run, reference(net))
        assert offloaded.losses == resident.losses


def count_sums_between_groups(world: World, micro: int) -> int:
    trainer = Trainer(world, make_task("plain"), HYBRID | {"train__batch__micro": micro})
    honest, counted = dist.all_reduce, []

    def counting(*args: Any, **options: Any) -> Any:
        counted.append(options["group"].size())
        return honest(*args, **options)

    dist.all_reduce = counting
    trainer.step(0)
    return counted.count(2)


def test_groups_add_their_gradients_up_once_per_step(ranks: "Launcher") -> None:
    """For each of 3 blocks and the root, whether a rank trains its part of the batch at once or in 3 micro-batches."""
    for micro in (3, 1):
        assert ranks(count_sums_between_groups, 4, micro) == [4] * 4


def shapes_of_shards(world: World) -> list[tuple[int, ...]]:
    state = Trainer(world, make_task("plain"), HYBRID).engine.state()
    return [
        tuple(local(state[f"{prefix}.head.weight{suffix}"]).shape)
        for prefix, suffix in (("model", ""), ("optimizer", ".exp_avg"))
    ] + [tuple(local(state["model.blocks.0.up.weight"]).shape)]


def test_each_group_holds_the_whole_model_and_a_world_within_a_group_is_one(ranks: "Launcher") -> None:
    for _, _, half in ranks(shapes_of_shards, 4):
        assert half == (4, 6)
    assert ranks(shapes_of_shards, 1) == [[(1, 6), (1, 6), (8, 6)]]


def build_three_in_groups_of_two(world: World) -> None:
    build_engine(make_config(**HYBRID), make_task("plain"), world)


def test_groups_that_are_not_full_are_refused(ranks: "Launcher") -> None:
    for outcome in ranks.start(build_three_in_groups_of_two, 3).outcomes():
        assert outcome.error_type == "ConfigError"
        assert "engine.shard_group_size 2 does not divide 3 workers" in outcome.error


def train_and_save(world: World, run_dir: str, net: str, changes: dict[str, Any]) -> tuple[str, Any]:
    trainer = Trainer(world, make_task(net), changes)
    trainer.step(0)
    state = trainer.engine.state()
    name = make_saver(world, run_dir).save_final(state, trainer.engine.aliases(), resume_at(1))
    return name, gathered(dict(state))


def load_into(world: World, run_dir: str, name: str, net: str, changes: dict[str, Any]) -> Any:
    trainer = Trainer(world, make_task(net), changes | {"train__seed": 1})
    load(run_dir, name, trainer.engine.state())
    trainer.engine.after_load()
    flags = {n: p.requires_grad for n, p in trainer.task.module.named_parameters()}
    loaded = {n: tensor.clone() for n, tensor in gathered(dict(trainer.engine.state())).items()}
    return loaded, flags, trainer.step(1).loss


FROM_TO = {
    "fp16-hybrid": (
        "odd_sizes",
        HYBRID | FP16,
        4,
        [(ENGINES["ddp"] | FP16, 2), (ENGINES["fsdp-2"] | FP16, 3)],
    ),
    "to-hybrid": ("uneven_frozen", OFFLOAD, 3, [(HYBRID, 4), (OFFLOAD, 2)]),
}


@pytest.mark.parametrize("case", FROM_TO)
def test_what_one_layout_wrote_another_continues(ranks: "Launcher", tmp_path: Path, case: str) -> None:
    """B025, B030, B043: bit for bit, with few rows, uneven ones, frozen ones and a loss scale; then trains on alike."""
    net, changes, world_size, readers = FROM_TO[case]
    (name, saved), *_ = ranks(train_and_save, world_size, str(tmp_path), net, changes)
    assert ("scaler.scale" in saved) == (case == "fp16-hybrid")
    frozen = [n for n, p in make_task(net).build().named_parameters() if not p.requires_grad]
    losses = []
    for other, size in readers:
        for loaded, flags, loss in ranks(load_into, size, str(tmp_path), name, net, other):
            assert same(saved, loaded)
            assert [n for n, is_trained in flags.items() if not is_trained] == frozen
            losses.append(loss)
    assert losses == pytest.approx([losses[0]] * len(losses), rel=2e-3)


def watch_gathers(world: World, prefetches: list[dict[str, int]]) -> list[list[str]]:
    """Return for each setting what happened in one step, in order: `gather 0`, `forward 0`, `backward 0`."""
    found: list[list[str]] = []
    gather, forward = fsdp_internals.foreach_all_gather, Block.forward

    def watched_gather(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        _, _, rest = parameters[0]._param_fqn.partition("blocks.")
        if rest:
            found[-1].append(f"gather {rest[0]}")
        return gather(parameters, *args, **kwargs)

    fsdp_internals.foreach_all_gather = watched_gather
    for prefetch in prefetches:
        found.append([])
        trainer = Trainer(world, make_task("plain"), ENGINES["fsdp-3"] | {"engine__prefetch": prefetch})
        assert trainer.task.module is not None
        for i, block in enumerate(trainer.task.module.blocks):
            block.norm.register_forward_pre_hook(lambda *_, i=i: found[-1].append(f"forward {i}"))
            block.down.register_full_backward_hook(lambda *_, i=i: found[-1].append(f"backward {i}"))
        trainer.step(0)
    fsdp_internals.foreach_all_gather = gather
    assert Block.forward is forward
    return found


def gathered_before_each(events: list[str], kind: str) -> list[int]:
    """Return how many gathers came before the first, second ... event of a kind."""
    return [
        sum(earlier.startswith("gather") for earlier in events[:i])
        for i, event in enumerate(events)
        if event.startswith(kind)
    ]


def test_as_many_units_are_gathered_ahead_as_prefetch_says(ranks: "Launcher") -> None:
    """Each of the 3 blocks is gathered for its forward and for its backward; never sooner than asked for."""
    prefetches = [{"forward": 0, "backward": 0}, {"forward": 1, "backward": 1}, {"forward": 2, "backward": 0}]
    none, one, forward_two = ranks(watch_gathers, 2, prefetches)[0]
    assert gathered_before_each(none, "forward") == [1, 2, 3]
    assert gathered_before_each(none, "backward") == [4, 5, 6]
    assert gathered_before_each(one, "forward") == [2, 3, 3]
    assert gathered_before_each(one, "backward") == [5, 6, 6]
    assert gathered_before_each(forward_two, "forward") == [3, 3, 3]
    assert gathered_before_each(forward_two, "backward") == [4, 5, 6]
