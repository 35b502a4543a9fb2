"""The training part of a job file: model, data, train, engine, scaling, checkpoint, failure.

Defaults live here and nowhere else. What a later version brings is refused by name (`NOT_YET`), never ignored.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from workers.contract.base import Strict
from workers.contract.data_config import (
    BpeTokenizer,
    BytesTokenizer,
    DataConfig,
    FileTokenizer,
    JsonlData,
    MixtureData,
    ParquetData,
    Source,
    TaskData,
    TextData,
    TokenData,
    Tokenizer,
    TokensData,
    Validation,
    data_paths,
)
from workers.contract.deepspeed_raw import SAME, RawReading, read_raw
from workers.contract.engine_config import Engine, Offload, Prefetch
from workers.contract.model_config import EnvironmentName, HfModel, LlamaModel, LlamaSize, Lora, TaskModel
from workers.contract.numbers import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from workers.contract.train_config import Batch, LossScale, Optimizer, Precision, Schedule, Train

__all__ = [
    "NOT_YET",
    "Batch",
    "BpeTokenizer",
    "BytesTokenizer",
    "Checkpoint",
    "DataConfig",
    "Engine",
    "Failure",
    "FileTokenizer",
    "HfModel",
    "JsonlData",
    "LlamaModel",
    "LlamaSize",
    "Lora",
    "LossScale",
    "MixtureData",
    "Offload",
    "Optimizer",
    "ParquetData",
    "Precision",
    "Prefetch",
    "Runtime",
    "Scaling",
    "Schedule",
    "Source",
    "TaskData",
    "TaskModel",
    "TextData",
    "TokenData",
    "Tokenizer",
    "TokensData",
    "Train",
    "TrainingConfig",
    "Validation",
    "Width",
    "paths_of",
]

WORKER_LIMIT: Final = 4096

# Keys and values that the design names and this version does not have: path -> value (or "*") -> remedy.
NOT_YET: Final[Mapping[str, Mapping[str, str]]] = {
    "data.kind": {"hf": "save the data set as JSON lines or Parquet, and use `jsonl` or `parquet`"},
    "engine.kind": {"auto": "name the engine: `fsdp` or `ddp`"},
    "engine.zero_stage": {"auto": "name the stage: 3 (or 2) for `fsdp`, 0 for `ddp`"},
    "failure.on_oom": {"replan": "use `fail`"},
    "failure.on_nan": {"rollback": "use `fail`", "skip": "use `fail`"},
    "queue.preemptible": {"True": "leave it out: this version admits first come, first served"},
}


class Width(Strict):
    """How many workers: any of min, min + step, ... up to max."""

    min: PositiveInt
    max: PositiveInt
    step: PositiveInt = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}")
        if self.max > WORKER_LIMIT:
            raise ValueError(f"max {self.max} is more than the {WORKER_LIMIT} workers that a job may have")
        return self

    def widths(self) -> tuple[int, ...]:
        """Every world size that is allowed, widest first."""
        return tuple(reversed(range(self.min, self.max + 1, self.step)))


def _as_width(value: object) -> object:
    """Read `4`, `[2, 8]` and `{min, max, step}` as one shape; leave anything else for the error."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "max": value}
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"min": value[0], "max": value[1]}
    return value


class Scaling(Strict):
    """Workers and what each of them holds of a node."""

    num_workers: Annotated[Width, BeforeValidator(_as_width)] = Width(min=1, max=1)
    cpus_per_worker: PositiveInt = 1
    gpus_per_worker: NonNegativeInt | Literal["auto"] = "auto"  # auto: 1 where the cluster has GPUs, else 0
    threads_per_worker: PositiveInt | None = None  # torch's intra-op threads; None: cpus_per_worker


class Checkpoint(Strict):
    """When and where state is saved."""

    storage_path: Annotated[
        str,
        Field(
            description="Where the run directory lies, named by the job's id: a path, or for checkpoints a URL. A "
            "relative path begins at the service's storage root ($SHARDYARD_HOME/storage), with `submit --local` "
            "where you stand; never at the job file, as paths of data do."
        ),
    ] = "runs"
    every_steps: PositiveInt = 50
    keep: PositiveInt = 3  # the newest so many
    keep_best: NonNegativeInt = (
        0  # and so many by validation loss, or by training loss where nothing is held out
    )
    mode: Literal["async", "sync"] = "async"


class Failure(Strict):
    """What happens when something dies. `max_failures` counts infrastructure; user code is never retried.

    `hang_seconds` is how long all ranks may stand still in one step before the one that the others wait for is ended:
    `auto` is 20 usual steps, at least 30 s. Compiling, loading, evaluating and saving have 20 minutes.
    """

    max_failures: NonNegativeInt = 5
    hang_seconds: Literal["auto"] | PositiveFloat = "auto"
    on_oom: Literal["fail"] = "fail"
    on_nan: Literal["fail"] = "fail"


class Runtime(Strict):
    """What the ranks need around them. Values of `env` are visible to whoever sees the job: no secrets.

    A rank that handles SIGTERM itself gets it when its job is cancelled or its workers are given back, and SIGKILL
    `grace_seconds` later; any other rank ends at once.
    """

    env: Mapping[EnvironmentName, str] = Field(default_factory=dict)
    working_dir: str | None = None  # a directory that is shipped to every node and put on sys.path
    grace_seconds: Annotated[NonNegativeFloat, Field(le=10)] = 5.0  # the driver waits longer for its workers


class TrainingConfig(Strict):
    """Everything a rank needs to know of a job. `model` and `data` have no default."""

    model: Annotated[LlamaModel | HfModel | TaskModel, Field(discriminator="kind")]
    data: DataConfig
    validation: Validation = Validation()
    train: Train = Train()
    engine: Engine = Engine()
    scaling: Scaling = Scaling()
    checkpoint: Checkpoint = Checkpoint()
    failure: Failure = Failure()
    runtime: Runtime = Runtime()
    export: Literal["none", "safetensors"] = "none"

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if (self.model.kind == "task") != (self.data.kind == "task"):
            raise ValueError(
                "`model.kind: task` and `data.kind: task` come together: a task brings its own data"
            )
        widest = self.scaling.num_workers.max
        if self.train.batch.global_sequences < widest:
            raise ValueError(
                f"train.batch.global_sequences {self.train.batch.global_sequences} is below "
                f"scaling.num_workers max {widest}: some workers would never see a sequence"
            )
        return self

    @model_validator(mode="after")
    def _groups_are_full(self) -> Self:
        group = self.engine.shard_group_size
        if group is not None:
            uneven = [width for width in self.scaling.num_workers.widths() if width > group and width % group]
            if uneven:
                raise ValueError(
                    f"engine.shard_group_size {group} does not divide scaling.num_workers {uneven[-1]}: "
                    f"use a multiple, or `num_workers: {{min: {group}, max: ..., step: {group}}}`"
                )
        return self

    @model_validator(mode="after")
    def _raw_agrees(self) -> Self:
        if self.engine.raw is not None and (problems := self.read_raw().problems):
            raise ValueError("; ".join(problems))
        return self

    def read_raw(self) -> RawReading:
        """Return what `engine.raw` comes to beside the rest of the job file."""
        places = set(SAME.values())
        job = {place: reduce(getattr, place.split("."), self) for place in places}
        return read_raw(self.engine.raw or {}, job | {"engine.zero_stage": self.engine.stage})

    @model_validator(mode="after")
    def _precision_fits_engine(self) -> Self:
        engine, precision = self.engine, self.train.precision
        if engine.kind == "deepspeed" and engine.stage == 0 and precision.params != "fp32":
            raise ValueError(
                f"engine.zero_stage 0 of deepspeed trains wrongly in {precision.params} (measured in DeepSpeed 0.19.8, "
                "bf16): use `kind: ddp`"
            )
        if "fp16" in (precision.params, precision.reduce) and self.scaling.gpus_per_worker == 0:
            raise ValueError("train.precision fp16 needs a GPU, and gpus_per_worker is 0: use bf16")
        return self


def paths_of(config: TrainingConfig) -> Mapping[str, str]:
    """Return every path of files that a job reads or offloads to, by the place that `--set` knows."""
    paths = {f"data.{place}": path for place, path in data_paths(config.data).items()}
    model = config.model
    if isinstance(model, HfModel) and model.path is not None and model.path.startswith((".", "/", "~")):
        paths["model.path"] = model.path  # anything else is a name on the hub
    if config.engine.offload.nvme_path is not None:
        paths["engine.offload.nvme_path"] = config.engine.offload.nvme_path
    return paths
