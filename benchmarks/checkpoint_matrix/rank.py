"""One rank: an engine that loads, saves and trains as a job does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.equivalence.matrix import EVERYTHING, SEED, Training, Variant
from benchmarks.equivalence.model import make_task
from benchmarks.equivalence.rank import forget_groups, micro_batches, whole
from workers.checkpointing.load import load
from workers.checkpointing.save import Author, Saver
from workers.contract.batch import plan_batch
from workers.contract.config import TrainingConfig
from workers.contract.manifest import ResumePoint
from workers.engines import build_engine
from workers.engines.deepspeed import library
from workers.schedule import learning_rate
from workers.world import World

TRAINING: Training = EVERYTHING
STEPS = 20  # of the schedule: every trainer here is somewhere on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What one engine at one width came to with the reference's checkpoint."""

    saved: str  # the checkpoint that it wrote at once
    losses: Sequence[float]  # of the steps after it
    straight: Sequence[float]  # of more steps, without an interruption
    resumed: Sequence[float]  # of the same steps, by a new engine from a checkpoint of its own


class Trainer:
    """An engine of `variant`, and steps by their number."""

    def __init__(self, world: World, variant: Variant, nvme_path: str, *, will_load: bool) -> None:
        """Collective."""
        library.SMALLEST_FILE_BYTES = 1024  # a job's bound is a megabyte, and nothing here is as large
        forget_groups()
        self._world = world
        self._config = TrainingConfig.model_validate(TRAINING.job(variant, nvme_path=nvme_path, steps=STEPS))
        self._task = make_task(TRAINING)
        self.engine = build_engine(self._config, self._task, world, will_load=will_load)

    def train(self, steps: range) -> list[float]:
        """Return the losses of those steps; collective."""
        batch = self._config.train.batch
        plan = plan_batch(
            global_sequences=batch.global_sequences, world_size=self._world.world_size, micro=batch.micro
        )
        return [
            self.engine.train_step(
                micro_batches(self._task, self._config, plan, step=step, rank=self._world.rank),
                learning_rate=learning_rate(step, self._config.train),
            ).loss
            for step in steps
        ]

    def save(self, run_dir: str, step: int) -> str:
        """Publish a checkpoint and return its name; collective."""
        saver = Saver(
            run_dir=run_dir,
            author=Author(generation=0, attempt=0, round=0, nonce="0" * 8),
            world=self._world,
            keep=9,
            emit=lambda _: None,
            parent=None,
        )
        point = ResumePoint(
            step=step, next_index=0, seed=SEED, tokens_seen=0, data_digest="walks", config_digest=""
        )
        return saver.save_final(self.engine.state(), self.engine.aliases(), point)

    def load(self, run_dir: str, name: str) -> None:
        """Take a checkpoint's state; collective."""
        load(run_dir, name, self.engine.state())
        self.engine.after_load()

    def values(self) -> dict[str, torch.Tensor]:
        """Whole tensors by name, on every rank; collective."""
        return {name: whole(tensor) for name, tensor in self.engine.state().items()}


def make_reference(world: World, variant: Variant, run_dir: str, steps: int) -> tuple[str, list[float]]:
    """Train `steps`, save, go on to the end; return the checkpoint and the losses after it."""
    trainer = Trainer(world, variant, "", will_load=False)
    trainer.train(range(steps))
    return trainer.save(run_dir, steps), trainer.train(range(steps, STEPS))


def visit(
    world: World, variant: Variant, nvme_path: str, reference: tuple[str, str], run_dir: str, *, steps: int
) -> Visit:
    """Load the reference, save it again, go on; then stop in between, and go on once more."""
    trainer, half = Trainer(world, variant, nvme_path, will_load=True), (steps + STEPS) // 2
    trainer.load(*reference)
    saved = trainer.save(run_dir, steps)
    losses = trainer.train(range(steps, half))
    own = trainer.save(run_dir, half)
    straight = trainer.train(range(half, STEPS))
    other = Trainer(world, variant, nvme_path, will_load=True)
    other.load(run_dir, own)
    resumed = other.train(range(half, STEPS))
    return Visit(saved=saved, losses=[*losses, *straight], straight=straight, resumed=resumed)


def load_all(
    world: World,
    variant: Variant,
    nvme_path: str,
    layouts: Mapping[str, tuple[str, str]],
    expected: Mapping[str, torch.Tensor],
) -> list[str]:
    """Load every layout in turn; return the names of those that did not come back bit for bit."""
    trainer = Trainer(world, variant, nvme_path, will_load=True)
    wrong = []
    for label, (run_dir, name) in layouts.items():
        for tensor in trainer.engine.state().values():
            _spoil(tensor)
        trainer.load(run_dir, name)
        found = trainer.values()
        if found.keys() != expected.keys() or any(
            not torch.equal(found[key], value) for key, value in expected.items()
        ):
            wrong.append(label)
    return wrong


def _spoil(tensor: torch.Tensor) -> None:
    """Overwrite what the layout before has left, so that nothing is right by chance."""
    local = getattr(tensor, "local", None)  # a FlatShard's part
    part = local if local is not None else getattr(tensor, "_local_tensor", tensor)  # a DTensor's
    with torch.no_grad():
        part.fill_(7)
