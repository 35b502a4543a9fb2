"""The matrix: engines with their stages and offloads, world sizes, trainings. Values only: nothing is run here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import ValidationError

from workers.contract.config import Engine, TrainingConfig

WORLD_SIZES: Final = (1, 2, 3, 4)
GROUP_SIZE: Final = 2  # of hybrid shard and hpZ: four ranks are two groups
STEPS: Final = 20
SEED: Final = 0

OPTIMIZERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "adamw": {"name": "adamw", "lr": 3e-3, "eps": 1e-6, "weight_decay": 0.1},
    "sgd": {"name": "sgd", "lr": 0.1, "weight_decay": 0.1},  # momentum 0.9, as `betas` says
}

Place = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a training: what a job file's `engine` says."""

    kind: Literal["ddp", "fsdp", "deepspeed"]
    stage: int
    in_groups: bool = False  # stage 3 gathers within groups of GROUP_SIZE: hybrid shard, or hpZ
    optimizer: Place = "none"  # where optimizer state lies: on the device, or offloaded
    params: Place = "none"

    @property
    def name(self) -> str:
        """`fsdp-3`, `deepspeed-3 optimizer:nvme params:cpu`."""
        kind = "ddp" if self.kind == "ddp" else f"{self.kind}-{self.stage}"
        group = {"fsdp": " hybrid", "deepspeed": " hpZ"}[self.kind] if self.in_groups else ""
        places = [
            f"{what}:{place}"
            for what, place in (("optimizer", self.optimizer), ("params", self.params))
            if place != "none"
        ]
        return " ".join((kind + group, *places))

    @property
    def needs_nvme(self) -> bool:
        """True if state goes to files."""
        return "nvme" in (self.optimizer, self.params)

    def engine(self, nvme_path: str) -> dict[str, Any]:
        """Return the section `engine` of a job file."""
        section: dict[str, Any] = {"kind": self.kind, "zero_stage": self.stage}
        section["offload"] = {"optimizer": self.optimizer, "params": self.params}
        if self.needs_nvme:
            section["offload"]["nvme_path"] = nvme_path
        if self.in_groups:
            section["shard_group_size"] = GROUP_SIZE
        return section


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training that every variant has to repeat."""

    name: str
    shows: str  # what it is there for, for the page
    width: int = 24  # hidden size; every world size here divides 24
    global_sequences: int = 12
    has_oddities: bool = False  # tied, unused, frozen, 0-dim and empty parameters
    is_deferred: bool = False  # weights given one by one, the module on the meta device
    micro: int = 12  # sequences in one forward, at most
    optimizer: Literal["adamw", "sgd"] = "adamw"
    grad_clip: float | None = None  # below the norm of some steps, above that of others
    precision: Literal["fp32", "bf16"] = "fp32"
    recomputes: bool = False  # activations, in backward

    def job(self, variant: Variant, *, nvme_path: str, steps: int = STEPS) -> dict[str, Any]:
        """Return the training part of a job file that trains this under `variant`."""
        return {
            "model": {"kind": "task", "target": "benchmarks.equivalence.model:make_task"},
            "data": {"kind": "task"},
            "train": {
                "steps": steps,
                "seed": SEED,
                "batch": {"global_sequences": self.global_sequences, "micro": self.micro},
                "optimizer": OPTIMIZERS[self.optimizer],
                "schedule": {"name": "cosine", "warmup_steps": 4},
                "precision": {"params": self.precision},
                "grad_clip": self.grad_clip,
            },
            "engine": variant.engine(nvme_path)
            | {"activation_checkpointing": "full" if self.recomputes else "none"},
        }


EVERYTHING: Final = Training(
    name="everything",
    shows="all of these at once, weights given one by one, activations recomputed in backward",
    width=25,
    global_sequences=10,
    has_oddities=True,
    is_deferred=True,
    micro=2,
    grad_clip=1.8,
    recomputes=True,
)
TRAININGS: Final = (
    Training(name="plain", shows="one forward a step on each rank, all parameters trained, no clipping"),
    Training(
        name="accumulation",
        shows="two sequences a forward: up to 6 micro-batches a step, which count 7 to 19 tokens each",
        micro=2,
    ),
    Training(
        name="clipping",
        shows="by SGD with momentum, which takes a gradient as large as it is: AdamW hides a wrong factor",
        optimizer="sgd",
        grad_clip=0.9,
    ),
    Training(
        name="oddities", shows="tied, unused, frozen, 0-dim and empty parameters, a table", has_oddities=True
    ),
    Training(
        name="uneven",
        shows="hidden size 25, 10 sequences a step: no world size above 1 divides 25, neither 3 nor 4 divides 10",
        width=25,
        global_sequences=10,
    ),
    EVERYTHING,
    replace(
        EVERYTHING,
        name="everything in bf16",
        shows="the same in bf16, with fp32 masters and fp32 reduction",
        precision="bf16",
    ),
)

DDP: Final = Variant(kind="ddp", stage=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the matrix."""

    variant: Variant
    world_size: int
    training: Training


def variants() -> tuple[Variant, ...]:
    """Return every engine x stage x group x offload that a job file may ask for, in the order of the page."""
    places: tuple[Place, ...] = ("none", "cpu", "nvme")
    every = (
        Variant(kind=kind, stage=stage, in_groups=in_groups, optimizer=optimizer, params=params)
        for kind in ("ddp", "fsdp", "deepspeed")
        for stage in range(4)
        for in_groups in (False, True)
        for optimizer in places
        for params in places
    )
    return tuple(variant for variant in every if is_allowed(variant))


def is_allowed(variant: Variant) -> bool:
    """True if the product's own rules take it: what they refuse at submit is no row."""
    if variant.in_groups and (variant.optimizer, variant.params) != ("none", "none"):
        return False  # a choice of ours: groups are shown once, without offload
    try:
        Engine.model_validate(variant.engine("/nvme"))
    except ValidationError:
        return False
    return True


def is_run(cell: Cell) -> bool:
    """True if the cell means something: groups need more than one of them, and the precision must be allowed."""
    if cell.variant.in_groups and cell.world_size <= GROUP_SIZE:
        return False
    job = cell.training.job(cell.variant, nvme_path="/nvme")
    job["scaling"] = {"num_workers": cell.world_size}
    try:
        TrainingConfig.model_validate(job)
    except ValidationError:
        return False
    return True


def cells() -> Iterator[Cell]:
    """Return the whole matrix, world size by world size, DDP first: rows in bf16 are compared with it."""
    for world_size in WORLD_SIZES:
        for variant in variants():
            for training in TRAININGS:
                cell = Cell(variant=variant, world_size=world_size, training=training)
                if is_run(cell):
                    yield cell
