"""What the tests of models share: small models of transformers, four steps of any model under any engine, and saving."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from engine_runs import ENGINES, whole
from sharded_states import make_saver, resume_at

from workers.checkpointing.load import load
from workers.contract.config import TrainingConfig
from workers.data.dataset import Batch
from workers.engines import WeightedBatch, build_engine
from workers.models import load_task
from workers.schedule import learning_rate
from workers.world import World

STEPS: Final = 4
SEQUENCES: Final = 4
LIFE: Final = Path(__file__).parents[2] / "examples" / "life"
LLAMA: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
GPT2: Final[Mapping[str, Any]] = {
    "model_type": "gpt2",
    "vocab_size": 260,
    "bos_token_id": None,
    "eos_token_id": None,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
ADAPTERS: Final = {"rank": 2, "target_modules": ["q_proj", "v_proj"]}


def engine(name: str) -> dict[str, Any]:
    """Return the `engine` section that tests of engines call `name`."""
    return {key.removeprefix("engine__"): value for key, value in ENGINES[name].items()}


class Job(NamedTuple):
    """What is trained, by what, in which precision."""

    model: Mapping[str, Any]
    engine: str
    params: str = "fp32"
    with_documents: bool = False

    def config(self) -> TrainingConfig:
        """A job of four steps over four sequences each."""
        is_task = self.model["kind"] == "task"
        data = {"kind": "task"} if is_task else {"kind": "text", "path": "python-stdlib", "seq_len": 16}
        return TrainingConfig.model_validate(
            {
                "model": self.model,
                "data": data,
                "train": {
                    "steps": STEPS,
                    "batch": {"global_sequences": SEQUENCES, "micro": 1},
                    "precision": {"params": self.params},
                    "optimizer": {"lr": 1e-2, "eps": 1e-6},
                    "schedule": {"name": "constant", "warmup_steps": 0},
                },
                "engine": engine(self.engine),
            }
        )

    def batch(self, indices: range) -> Batch:
        """Samples by number: of the life task its own, else random bytes, in two documents if asked."""
        if self.model["kind"] == "task":
            return load_task(self.config()).dataset(Path()).batch(list(indices))
        return tokens(indices, with_documents=self.with_documents)


def hf(**fields: Any) -> dict[str, Any]:
    """Return the `model` section of a model of transformers."""
    return {"kind": "hf", **fields}


def life() -> dict[str, Any]:
    """Return the `model` section of the example package, which becomes importable."""
    if str(LIFE) not in sys.path:
        sys.path.insert(0, str(LIFE))
    return {"kind": "task", "target": "life.task:make_task", "args": {"width": 6, "num_layers": 2}}


def tokens(indices: range, *, with_documents: bool = False) -> Batch:
    """Random bytes by number, int64 [B, 16]; a sample's first `5 + number % 5` positions are its first document."""
    rows = torch.stack(
        [torch.randint(0, 256, (17,), generator=torch.Generator().manual_seed(i)) for i in indices]
    )
    batch = {"tokens": rows[:, :-1], "labels": rows[:, 1:].clone()}
    if with_documents:
        first = torch.tensor([5 + i % 5 for i in indices])[:, None]
        batch["documents"] = (torch.arange(16) >= first).long()
        batch["labels"].scatter_(1, first - 1, -100)
    return batch


class Trained(NamedTuple):
    """Four steps: the loss of each, the weights after them, and who has a state of the optimizer."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    stepped: list[str]


def train(world: World, job: Job) -> Trained:
    """Train four steps, a sequence at a time."""
    trainer = Trainer(world, job)
    losses = [trainer.step(step) for step in range(STEPS)]
    return Trained(losses, trainer.weights(), trainer.stepped())


def train_all(world: World, jobs: list[Job]) -> list[Trained]:
    """Train one job after another."""
    return [train(world, job) for job in jobs]


def train_and_save(world: World, jobs: Mapping[str, Job]) -> dict[str, dict[str, torch.Tensor]]:
    """Train each job, save it into the directory that is its key, and return its weights."""
    weights = {}
    for run_dir, job in jobs.items():
        trainer = Trainer(world, job)
        for step in range(STEPS):
            trainer.step(step)
        trainer.save(run_dir, STEPS)
        weights[run_dir] = trainer.weights()
    return weights


def go_on_from(
    world: World, run_dir: str, first: Job, others: list[Job]
) -> tuple[list[float], list[list[float]]]:
    """Train `first`, saved half-way; then go on with each of `others` from there. Returns the losses of the second half."""
    trainer, half = Trainer(world, first), STEPS // 2
    for step in range(half):
        trainer.step(step)
    name = trainer.save(run_dir, half)
    straight = [trainer.step(step) for step in range(half, STEPS)]
    resumed = []
    for job in others:
        other = Trainer(world, job, will_load=True)
        load(run_dir, name, other.engine.state())
        other.engine.after_load()
        resumed.append([other.step(step) for step in range(half, STEPS)])
    return straight, resumed


class Trainer:
    """An engine of a job with its samples, step by step."""

    def __init__(self, world: World, job: Job, *, will_load: bool = False) -> None:
        if job.model["kind"] == "task":
            life()
        self._world, self._job, self._config = world, job, job.config()
        self._task = load_task(self._config)
        self.engine = build_engine(self._config, self._task, world, will_load=will_load)

    def step(self, step: int) -> float:
        """Train this rank's share, a sequence at a time; return the loss."""
        share = SEQUENCES // self._world.world_size
        first = step * SEQUENCES + self._world.rank * share
        batches = [self._job.batch(range(i, i + 1)) for i in range(first, first + share)]
        weighted = [WeightedBatch(batch=b, num_tokens=self._task.num_tokens(b), seed=first) for b in batches]
        return self.engine.train_step(weighted, learning_rate=learning_rate(step, self._config.train)).loss

    def save(self, run_dir: str, step: int) -> str:
        """Publish a checkpoint; return its name."""
        saver = make_saver(self._world, run_dir)
        return saver.save_final(self.engine.state(), self.engine.aliases(), resume_at(step))

    def weights(self) -> dict[str, torch.Tensor]:
        """Whole parameters by the module's own names; collective."""
        state = self.engine.state().items()
        return {name.removeprefix("model."): whole(t) for name, t in state if name.startswith("model.")}

    def stepped(self) -> list[str]:
        """The parameters that the optimizer has a state of."""
        names = [name for name in self.engine.state() if name.endswith(".step")]
        return sorted(name.removeprefix("optimizer.").removesuffix(".step") for name in names)


def train_outside(
    module: torch.nn.Module, loss_of: Callable[[range], torch.Tensor]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same training by torch alone, on one process and without cutting a batch."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-6)
    losses = []
    for step in range(STEPS):
        loss = loss_of(range(step * SEQUENCES, (step + 1) * SEQUENCES))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in module.named_parameters()}
