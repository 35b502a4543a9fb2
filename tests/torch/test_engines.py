"""Both engines, at every stage and world size, train what one plain process trains."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_runs import ENGINES, LOW, Trainer, assert_equal_runs, local, reference, train_all
from small_tasks import NETS, Run, make_task

from workers.engines import buckets
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_net_trains_as_in_one_process(ranks: "Launcher", engine: str, world_size: int) -> None:
    """B012, B014, B021, B022, B025, B026, B030, B040, B041, B151: tied, shared, unused, tiny, empty, uneven, frozen ones."""
    nets = NETS if world_size != 3 else ("plain", "odd_sizes", "uneven_frozen")
    changes = ENGINES[engine] | {"train__batch__micro": 2}
    for results in ranks(train_all, world_size, [({"net": net}, changes) for net in nets]):
        for net, run in zip(nets, results, strict=True):
            try:
                assert_equal_runs(run, reference(net))
            except AssertionError as error:
                raise AssertionError(f"net {net!r} with {engine} on {world_size} ranks: {error}") from error


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_cut_of_a_global_batch_changes_nothing(ranks: "Launcher", world_size: int) -> None:
    """B036, B038, B052: 16 x 1, 4 x 4, 2 workers x 2 x 4 and so on, also cuts with a short end and larger than the batch.

    With clipping on, all give one loss, norm and update. Neither a gradient nor the schedule sees a micro-batch.
    """
    micros = (1, 3, 4, 32)
    cuts = [changes | {"train__batch__micro": micro} for changes in ENGINES.values() for micro in micros]
    common = {"train__batch__global_sequences": 16, "train__steps": 5, "train__grad_clip": 0.1}
    (results, *_) = ranks(train_all, world_size, [({"net": "plain"}, cut | common) for cut in cuts])
    for run in results:
        assert_equal_runs(run, reference("plain", **common))


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_gradient_descent_takes_the_whole_gradient_once(ranks: "Launcher", engine: str) -> None:
    """B151: an optimizer that does not normalise shows a gradient that is N times too large."""
    sgd = {"train__optimizer__name": "sgd", "train__optimizer__lr": 0.1, "train__grad_clip": None}
    for (run,) in ranks(train_all, 4, [({"net": "plain"}, ENGINES[engine] | sgd)]):
        assert_equal_runs(run, reference("plain", **sgd))


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("scale", [1e-6, 0.0])
def test_clipping_leaves_a_tiny_or_zero_gradient_alone(
    ranks: "Launcher", scale: float, world_size: int
) -> None:
    """B042: no constant in the divisor that counts once per rank, and no division by a zero norm."""
    sgd = {"train__optimizer__name": "sgd", "train__grad_clip": 1e-7}
    runs = [({"net": "plain", "scale": scale}, changes | sgd) for changes in ENGINES.values()]
    for results in ranks(train_all, world_size, runs):
        for run in results:
            assert_equal_runs(run, reference("plain", scale, **sgd), tolerance=1e-6)
            assert all(weight.isfinite().all() for weight in run.weights.values())


def test_bf16_is_the_same_bf16_under_every_engine(ranks: "Launcher") -> None:
    bf16 = {"train__precision__params": "bf16", "train__batch__micro": 2}
    nets = ("plain", "tied", "odd_sizes", "empty_layer", "table")
    runs = [({"net": net}, changes | bf16) for net in nets for changes in LOW.values()]
    (results, _) = ranks(train_all, 2, runs)
    for i, net in enumerate(nets):
        ddp, *sharded = results[len(LOW) * i : len(LOW) * (i + 1)]
        assert all(weight.dtype == torch.float32 for weight in ddp.weights.values())
        assert ddp.losses == pytest.approx(reference(net).losses, rel=0.05)
        assert ddp.losses != pytest.approx(reference(net).losses, rel=1e-6)
        for run in sharded:
            assert run.losses == pytest.approx(ddp.losses, rel=5e-3), net


def test_gradients_reduced_in_bf16_are_close_under_every_engine(ranks: "Launcher") -> None:
    rough = {"train__precision__reduce": "bf16", "train__batch__micro": 2}
    (results, _) = ranks(train_all, 2, [({"net": "plain"}, changes | rough) for changes in ENGINES.values()])
    for run in results:
        assert run.losses == pytest.approx(reference("plain").losses, rel=0.05)
        assert run.losses != pytest.approx(reference("plain").losses, rel=1e-7)


def train_in_tiny_buckets(world: World, runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Run]:
    buckets.BUCKET_BYTES = 128  # less than most parameters: nearly every one is reduced by itself
    return train_all(world, runs)


def test_many_buckets_reduce_as_one_does(ranks: "Launcher") -> None:
    nets = ("plain", "unused_layer", "unused_inside", "empty_layer")
    changes = ENGINES["ddp"] | {"train__batch__micro": 2}
    for results in ranks(train_in_tiny_buckets, 2, [({"net": net}, changes) for net in nets]):
        for net, run in zip(nets, results, strict=True):
            assert_equal_runs(run, reference(net))


def test_recomputing_and_prefetching_change_no_bit(ranks: "Launcher") -> None:
    variants = [
        {"engine__activation_checkpointing": "full"},
        {"engine__prefetch": {"forward": 0, "backward": 0}},
        {"engine__prefetch": {"forward": 3, "backward": 2}},
    ]
    for changes in ENGINES.values():
        runs = [({"net": "dropout"}, changes | variant) for variant in ({}, *variants)]
        (results, _) = ranks(train_all, 2, runs)
        for run in results[1:]:
            assert run.losses == results[0].losses
            assert all(run.weights[name].equal(weight) for name, weight in results[0].weights.items())


def go_on_from_a_copied_state(world: World, runs: list[tuple[str, dict[str, Any]]]) -> None:
    for net, changes in runs:
        old, new = (Trainer(world, make_task(net), changes | {"train__seed": seed}) for seed in (0, 1))
        names = list(new.engine.state())
        old.config = new.config  # the same random streams from here on
        for step in range(2):
            old.step(step)
        state = new.engine.state()
        assert list(state) == list(old.engine.state()) == names
        for name, tensor in old.engine.state().items():
            local(state[name]).copy_(local(tensor))
        new.engine.after_load()
        assert new.step(3) == old.step(3), (net, changes)
        assert all(weight.equal(new.weights()[name]) for name, weight in old.weights().items())


def test_state_is_complete_before_the_first_step_and_all_there_is(ranks: "Launcher") -> None:
    """B023, B153: copied in place into a fresh engine of other weights, the next steps are the same bit for bit."""
    variants: list[dict[str, Any]] = [
        {},
        {"train__precision__params": "bf16"},
        {"train__optimizer__name": "sgd"},
    ]
    runs = [
        (net, changes | variant)
        for net in ("tied", "unused_layer", "odd_sizes")
        for engine, changes in ENGINES.items()
        for variant in variants
        if engine in LOW or "train__precision__params" not in variant
    ]
    ranks(go_on_from_a_copied_state, 2, runs)


def name_the_state(world: World, net: str, changes: dict[str, Any]) -> Any:
    trainer = Trainer(world, make_task(net), changes)
    state = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in trainer.engine.state().items()}
    flags = {name: p.requires_grad for name, p in trainer.task.module.named_parameters()}
    return state, dict(trainer.engine.aliases()), flags


@pytest.mark.parametrize("engine", ENGINES)
def test_state_has_whole_shapes_and_tied_names_once(ranks: "Launcher", engine: str) -> None:
    """B030: global shapes do not come from uneven local ones."""
    for state, aliases, _ in ranks(name_the_state, 3, "tied", ENGINES[engine]):
        assert aliases == {"model.last.weight": "model.first.weight"}
        assert state["model.first.weight"] == ((6, 6), torch.float32)
        assert "model.last.weight" not in state
    for state, _, flags in ranks(name_the_state, 3, "uneven_frozen", ENGINES[engine]):
        assert state["model.blocks.1.up.weight"] == ((7, 6), torch.float32)
        assert state["optimizer.blocks.0.up.weight.exp_avg"] == ((5, 6), torch.float32)
        assert state["optimizer.blocks.0.up.weight.step"] == ((), torch.float32)
        assert not any(name.startswith("optimizer.blocks.1.") for name in state)
        assert [name for name, flag in flags.items() if not flag] == [
            name for name in flags if name.startswith("blocks.1.")
        ]


def watch_the_table(world: World, changes: dict[str, Any]) -> Any:
    trainer = Trainer(world, make_task("table"), changes)
    for step in range(2):
        trainer.step(step)
    return trainer.task.module.table.clone(), list(trainer.engine.state())


@pytest.mark.parametrize("engine", LOW)
def test_a_table_of_the_constructor_stays_as_it_was_built(ranks: "Launcher", engine: str) -> None:
    """B047: not cast, not saved; the persistent buffer beside it is."""
    bf16 = {"train__precision__params": "bf16"}
    for table, names in ranks(watch_the_table, 4, ENGINES[engine] | bf16):
        assert table.equal(make_task("table").build().table)
        assert "buffer.counter" in names
        assert "buffer.table" not in names


def first_masks(world: World, changes: dict[str, Any]) -> Any:
    trainer = Trainer(world, make_task("dropout"), changes)
    weights = trainer.weights()
    trainer.step(0)
    return trainer.task.module.mask, weights


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_differ_between_ranks_and_repeat_between_runs(ranks: "Launcher", engine: str) -> None:
    """B055: and all ranks start from the same weights."""
    first, again = (ranks(first_masks, 2, ENGINES[engine]) for _ in range(2))
    assert not first[0][0].equal(first[1][0])
    for rank in range(2):
        assert first[rank][0].equal(again[rank][0])
        assert all(first[rank][1][name].equal(weight) for name, weight in first[0][1].items())


def spoil_one_rank(world: World, changes: dict[str, Any]) -> Any:
    task = make_task("plain", spoil_from=1 if world.rank == 1 else None)
    trainer = Trainer(world, task, changes)
    trainer.step(0)
    before = trainer.weights()
    output = trainer.step(1)
    unchanged = all(weight.equal(before[name]) for name, weight in trainer.weights().items())
    return output.is_finite, unchanged


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nan_on_one_rank_is_seen_by_all_and_touches_no_weight(ranks: "Launcher", precision: str) -> None:
    """B118."""
    for changes in LOW.values():
        results = ranks(spoil_one_rank, 2, changes | {"train__precision__params": precision})
        assert results == [(False, True)] * 2


def measure(world: World, changes: dict[str, Any]) -> dict[str, int]:
    trainer = Trainer(world, make_task("plain"), changes)
    trainer.step(0)
    return dict(trainer.engine.memory())


def test_memory_is_exact_by_category(ranks: "Launcher") -> None:
    """Shards of dim 0 are padded to the same size on every rank; ddp in bf16 keeps a copy and fp32 masters."""
    shapes = [parameter.shape for parameter in make_task("plain").build().parameters()]
    whole_size = sum(shape.numel() for shape in shapes)
    shard_size = sum(-(-shape[0] // 2) * shape[1:].numel() for shape in shapes)
    steps = 4 * len(shapes)
    bf16 = {"train__precision__params": "bf16"}
    (ddp, _) = ranks(measure, 2, ENGINES["ddp"] | bf16)
    assert ddp["parameters"] == 2 * whole_size
    assert ddp["optimizer_state"] == 12 * whole_size + steps
    assert ddp["gradients"] == 4 * whole_size
    (fsdp, _) = ranks(measure, 2, ENGINES["fsdp-3"] | bf16)
    assert fsdp["parameters"] == 4 * shard_size
    assert fsdp["optimizer_state"] == pytest.approx(8 * shard_size + steps, abs=16)  # moments have no padding
    assert 4 * shard_size <= fsdp["gradients"] <= 4 * shard_size + 64
    assert fsdp["buffers"] == ddp["buffers"] == 0
