"""Cases from the field about checkpoints that every engine has to get right."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch
from engine_runs import ENGINES, Trainer, whole
from safetensors.torch import load_file
from sharded_states import make_saver, resume_at
from small_tasks import WIDTH, Net, NetTask, make_config, make_task
from torch import nn

from workers.checkpointing.load import load
from workers.export import export
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

HALF: Final = 3
STEPS: Final = 6
OPTIMIZERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "adamw": {},
    "sgd": {"train__optimizer__name": "sgd"},
    "plain sgd": {"train__optimizer__name": "sgd", "train__optimizer__betas": (0.0, 0.999)},
}


def save_half_way(world: World, run_dir: str, engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Train to the middle, save, go on: by engine the checkpoint, the state that was saved, and the losses after it."""
    told = {}
    for engine, changes in engines.items():
        trainer = Trainer(world, make_task("plain"), changes)
        for step in range(HALF):
            trainer.step(step)
        saver = make_saver(world, f"{run_dir}/{engine}")
        name = saver.save_final(trainer.engine.state(), trainer.engine.aliases(), resume_at(HALF))
        saved = {key: whole(tensor) for key, tensor in trainer.engine.state().items()}
        told[engine] = (name, saved, [trainer.step(step).loss for step in range(HALF, STEPS)])
    return told


def resume(
    world: World, run_dir: str, engines: Mapping[str, Mapping[str, Any]], told: dict[str, Any]
) -> dict[str, Any]:
    """Load at this width: by engine what was loaded, and the losses after it."""
    found = {}
    for engine, changes in engines.items():
        trainer = Trainer(world, make_task("plain"), changes, will_load=True)
        load(f"{run_dir}/{engine}", told[engine][0], trainer.engine.state())
        trainer.engine.after_load()
        loaded = {key: whole(tensor) for key, tensor in trainer.engine.state().items()}
        found[engine] = (loaded, [trainer.step(step).loss for step in range(HALF, STEPS)])
    return found


def test_sharded_state_goes_on_at_other_widths_whatever_the_optimizer(
    ranks: "Launcher", tmp_path: Path
) -> None:
    """B001, B154, B155: moments and counters to the bit, from 4 workers on 2, 3 and 1; the losses after it as without a stop."""
    engines = {
        f"{name}, {optimizer}": dict(changes) | dict(more) | {"train__steps": STEPS}
        for name, changes in ENGINES.items()
        for optimizer, more in OPTIMIZERS.items()
        if optimizer == "adamw" or name in ("fsdp-3", "deepspeed-2", "deepspeed-3")
    }
    told, *_ = ranks(save_half_way, 4, str(tmp_path), engines, seconds=120)
    for name, (_, saved, _) in told.items():
        kinds = {key.rpartition(".")[2] for key in saved if key.startswith("optimizer.")}
        assert ("exp_avg" in kinds and "step" in kinds) == ("adamw" in name), name
    for world_size in (2, 3, 1):
        for found in ranks(resume, world_size, str(tmp_path), engines, told, seconds=120):
            for engine, (loaded, losses) in found.items():
                _, saved, straight = told[engine]
                assert loaded.keys() == saved.keys()
                assert all(loaded[key].equal(value) for key, value in saved.items()), engine
                assert losses == pytest.approx(straight, rel=1e-5), engine


class Prime(nn.Module):
    """1009 elements, a prime number: no padding of a flat buffer is hidden by luck."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Parameter(torch.linspace(-1, 1, 1009))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x * self.odd[: x.shape[-1]] + self.odd.sum()


def prime_net() -> Net:
    return Net([Prime() for _ in range(2)])


def export_of_primes(world: World, run_dir: str, engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    told = {}
    for engine, changes in engines.items():
        trainer = Trainer(world, NetTask(prime_net), changes)
        trainer.step(0)
        saver = make_saver(world, f"{run_dir}/{engine}")
        name = saver.save_final(trainer.engine.state(), trainer.engine.aliases(), resume_at(1))
        told[engine] = (name, trainer.weights())
    return told


@pytest.mark.parametrize("world_size", [2, 3])
def test_an_export_holds_exactly_the_elements_of_the_model(
    ranks: "Launcher", tmp_path: Path, world_size: int
) -> None:
    """B029."""
    told, *_ = ranks(export_of_primes, world_size, str(tmp_path), dict(ENGINES), seconds=120)
    plain = prime_net().state_dict()
    for engine, (name, weights) in told.items():
        exported = export(
            f"{tmp_path}/{engine}", name, make_config(**ENGINES[engine]), tmp_path / f"{engine}-out"
        )
        found = load_file(exported.export_path / "model.safetensors")
        assert {key: value.shape for key, value in found.items()} == {k: v.shape for k, v in plain.items()}
        assert all(found[key].equal(weight) for key, weight in weights.items()), engine
    assert WIDTH < 1009


def frozen_first_block() -> nn.Module:
    net = Net()
    net.blocks[0].requires_grad_(requires_grad=False)
    return net


def go_on_frozen(world: World, run_dir: str, name: str) -> str:
    trainer = Trainer(world, NetTask(frozen_first_block), {}, will_load=True)
    try:
        load(run_dir, name, trainer.engine.state())
    except Exception as error:  # the test reads what it says
        return str(error)
    return ""


def save_unfrozen(world: World, run_dir: str) -> str:
    trainer = Trainer(world, NetTask(Net), {})
    trainer.step(0)
    return make_saver(world, run_dir).save_final(
        trainer.engine.state(), trainer.engine.aliases(), resume_at(1)
    )


def test_moments_of_what_is_frozen_meanwhile_are_never_dropped_in_silence(
    ranks: "Launcher", tmp_path: Path
) -> None:
    """B016: a resume that would leave them out is refused, and names them."""
    name, _ = ranks(save_unfrozen, 2, str(tmp_path))
    for said in ranks(go_on_frozen, 2, str(tmp_path), name):
        assert "unexpected" in said
        assert "optimizer.blocks.0." in said
