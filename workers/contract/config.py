"""The training part of a job file: model, data, train, engine, scaling, checkpoint, failure.

Defaults live here and nowhere else. What a later version brings is refused by name (`NOT_YET`), never ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from workers.contract.base import Strict


def _refuse_bool(value: object) -> object:
    """Keep `lr: true` from being read as 1.0."""
    if isinstance(value, bool):
        raise ValueError("is not a number")
    return value


COUNT_LIMIT: Final = 10**9  # so that a product of two counts fits 64 bits
WORKER_LIMIT: Final = 4096
PositiveInt = Annotated[int, Field(gt=0, le=COUNT_LIMIT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=COUNT_LIMIT, strict=True)]
PositiveFloat = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0)]
NonNegativeFloat = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0)]
Ratio = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=1)]

# Keys and values that the design names and this version does not have: path -> value (or "*") -> remedy.
NOT_YET: Final[Mapping[str, Mapping[str, str]]] = {
    "model.kind": {"hf": "use `llama`, or `task` with your own module"},
    "data.kind": {
        "jsonl": "use `text` or `tokens`",
        "parquet": "use `text` or `tokens`",
        "hf": "use `text` or `tokens`",
    },
    "data.tokenizer": {"bpe": "use `bytes`"},
    "engine.kind": {"deepspeed": "use `fsdp` or `ddp`", "auto": "name the engine: `fsdp` or `ddp`"},
    "engine.zero_stage": {"auto": "name the stage: 3 (or 2) for `fsdp`, 0 for `ddp`"},
    "engine.offload": {"*": "leave it out: state stays on the device"},
    "engine.raw": {"*": "leave it out"},
    "engine.compile": {"True": "leave it out"},
    "engine.activation_checkpointing": {"selective": "use `none` or `full`"},
    "train.precision.params": {"fp16": "use `bf16` or `fp32`"},
    "failure.on_oom": {"replan": "use `fail`"},
    "failure.on_nan": {"rollback": "use `fail`", "skip": "use `fail`"},
    "queue.preemptible": {"True": "leave it out: this version admits first come, first served"},
}


class LlamaModel(Strict):
    """A Llama-style decoder. `size` gives the dimensions; each one below overrides it."""

    kind: Literal["llama"] = "llama"
    size: Literal["nano", "tiny", "small", "20m"] = "tiny"
    vocab_size: PositiveInt | None = None  # None: what the tokenizer needs
    hidden_size: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    num_layers: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    num_kv_heads: PositiveInt | None = None
    rope_theta: PositiveFloat = 10_000.0
    norm_eps: PositiveFloat = 1e-5
    tie_embeddings: bool = True


class TaskModel(Strict):
    """The user's own code: `target` names a callable, `module:attribute`, that returns a `workers.models.Task`."""

    kind: Literal["task"]
    target: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    args: Mapping[str, Any] = Field(default_factory=dict)


class TextData(Strict):
    """Files of text, tokenized once into a cache keyed by their content."""

    kind: Literal["text"]
    path: str  # a directory or a file; `python-stdlib` names the running interpreter's own library
    pattern: str = "*.py"
    tokenizer: Literal["bytes"] = "bytes"
    seq_len: PositiveInt = 256


class TokensData(Strict):
    """Token files that `shardyard-worker data prepare` wrote."""

    kind: Literal["tokens"]
    path: str
    seq_len: PositiveInt = 256


class TaskData(Strict):
    """The task of `model.kind: task` brings its own samples."""

    kind: Literal["task"]


class Batch(Strict):
    """The global batch, in sequences: it never changes, whatever the world size; accumulation is derived."""

    global_sequences: PositiveInt = 32
    micro: PositiveInt | Literal["auto"] = "auto"  # sequences per rank and forward; auto: at most 8


class Optimizer(Strict):
    """AdamW or SGD (momentum in `betas[0]`)."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 3e-4
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[NonNegativeFloat, NonNegativeFloat] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    @model_validator(mode="after")
    def _betas_below_one(self) -> Self:
        if max(self.betas) >= 1:
            raise ValueError(f"betas must be below 1, not {list(self.betas)}")
        return self


class Schedule(Strict):
    """Learning rate over steps: linear warm-up, then cosine or linear decay to `min_ratio`, or constant."""

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: NonNegativeInt = 20
    min_ratio: Ratio = 0.1


class Precision(Strict):
    """Dtypes of compute (`params`), of the optimizer's copy (`master`) and of gradient reduction."""

    params: Literal["fp32", "bf16"] = "bf16"
    master: Literal["fp32"] = "fp32"
    reduce: Literal["fp32", "bf16"] = "fp32"


class Train(Strict):
    """How long, on what batch, by which rule."""

    steps: PositiveInt = 200
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    precision: Precision = Precision()
    grad_clip: PositiveFloat | None = 1.0
    seed: NonNegativeInt = 0
    log_every_steps: PositiveInt = 1


class Prefetch(Strict):
    """Layers fetched ahead in each direction; backward 1 is what FSDP1 called BACKWARD_PRE."""

    forward: NonNegativeInt = 1
    backward: NonNegativeInt = 1


class Engine(Strict):
    """Who shards what. Stage 0 is `ddp`; stages 2 and 3 are `fsdp`."""

    kind: Literal["ddp", "fsdp"] = "fsdp"
    zero_stage: Annotated[int, Field(ge=0, le=3, strict=True)] | None = None  # None: 3 for fsdp, 0 for ddp
    prefetch: Prefetch = Prefetch()
    activation_checkpointing: Literal["none", "full"] = "none"
    compile: Literal[False] = False

    @property
    def stage(self) -> int:
        """The ZeRO stage in force, the default of the kind filled in."""
        return self.zero_stage if self.zero_stage is not None else {"ddp": 0, "fsdp": 3}[self.kind]

    @model_validator(mode="after")
    def _stage_fits_kind(self) -> Self:
        if self.kind == "ddp" and self.stage != 0:
            raise ValueError(f"zero_stage {self.stage} needs `kind: fsdp`; ddp shards nothing and is stage 0")
        if self.kind == "fsdp" and self.stage == 0:
            raise ValueError("zero_stage 0 shards nothing: use `kind: ddp`")
        if self.kind == "fsdp" and self.stage == 1:
            raise ValueError(
                "fsdp has no stage 1 (optimizer state only): use zero_stage 2, or 3 for the least memory"
            )
        return self


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
    """When and where state is saved. A relative path lies under the service's storage root."""

    storage_path: str = "runs"
    every_steps: PositiveInt = 50
    keep: PositiveInt = 3
    mode: Literal["async", "sync"] = "async"


class Failure(Strict):
    """What happens when something dies. `max_failures` counts infrastructure; user code is never retried."""

    max_failures: NonNegativeInt = 5
    on_oom: Literal["fail"] = "fail"
    on_nan: Literal["fail"] = "fail"


class Runtime(Strict):
    """What the ranks need around them. Values of `env` are visible to whoever sees the job: no secrets."""

    env: Mapping[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        default_factory=dict
    )
    working_dir: str | None = None  # a directory that is shipped to every node and put on sys.path


class TrainingConfig(Strict):
    """Everything a rank needs to know of a job. `model` and `data` have no default."""

    model: Annotated[LlamaModel | TaskModel, Field(discriminator="kind")]
    data: Annotated[TextData | TokensData | TaskData, Field(discriminator="kind")]
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
