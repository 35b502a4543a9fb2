"""Every exported metric, named once: dashboards, rules, documents and the collector use only these."""

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric family. Counters end in `_total`; units are base units and end the name."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


JOB_INFO: Final = Metric(
    name="shardyard_job_info",
    kind="gauge",
    labels=("job_id", "name", "engine", "zero_stage"),
    help="Always 1; joins a live job's name, engine and ZeRO stage to its other series.",
)
JOB_STATE: Final = Metric(
    name="shardyard_job_state",
    kind="gauge",
    labels=("job_id", "state"),
    help="1 for the state that a live job is in, 0 for every other.",
)
JOBS: Final = Metric(
    name="shardyard_jobs", kind="gauge", labels=("state",), help="Jobs in the store by state."
)
JOB_STEP: Final = Metric(
    name="shardyard_job_step",
    kind="gauge",
    labels=("job_id",),
    help="Optimizer steps finished on the surviving lineage.",
)
JOB_TARGET_STEPS: Final = Metric(
    name="shardyard_job_target_steps",
    kind="gauge",
    labels=("job_id",),
    help="Optimizer steps the job asks for.",
)
JOB_WORLD_SIZE: Final = Metric(
    name="shardyard_job_world_size", kind="gauge", labels=("job_id",), help="Ranks of the running attempt."
)
JOB_LOSS: Final = Metric(
    name="shardyard_job_loss",
    kind="gauge",
    labels=("job_id",),
    help="Training loss per token of the newest step.",
)
JOB_VALIDATION_LOSS: Final = Metric(
    name="shardyard_job_validation_loss",
    kind="gauge",
    labels=("job_id",),
    help="Loss per token over held-out samples, newest evaluation.",
)
JOB_GRAD_NORM: Final = Metric(
    name="shardyard_job_grad_norm",
    kind="gauge",
    labels=("job_id",),
    help="Global gradient norm before clipping, newest step.",
)
JOB_LEARNING_RATE: Final = Metric(
    name="shardyard_job_learning_rate",
    kind="gauge",
    labels=("job_id",),
    help="Learning rate of the newest step.",
)
JOB_TOKENS: Final = Metric(
    name="shardyard_job_tokens_total",
    kind="counter",
    labels=("job_id",),
    help="Tokens trained, replayed steps included.",
)
JOB_STEP_SECONDS: Final = Metric(
    name="shardyard_job_step_duration_seconds",
    kind="gauge",
    labels=("job_id", "rank"),
    help="Mean duration of an optimizer step over the newest sample.",
)
JOB_MEMORY_BYTES: Final = Metric(
    name="shardyard_job_memory_bytes",
    kind="gauge",
    labels=("job_id", "rank", "category"),
    help="Bytes that a rank holds, by category.",
)
JOB_RSS_BYTES: Final = Metric(
    name="shardyard_job_resident_memory_bytes",
    kind="gauge",
    labels=("job_id", "rank"),
    help="Resident set size of a rank's process.",
)
JOB_RESTARTS: Final = Metric(
    name="shardyard_job_restarts_total",
    kind="counter",
    labels=("job_id", "reason"),
    help="Restarts of any scope by failure class.",
)
CHECKPOINT_AGE_SECONDS: Final = Metric(
    name="shardyard_checkpoint_age_seconds",
    kind="gauge",
    labels=("job_id",),
    help="Seconds since the newest checkpoint was published.",
)
CHECKPOINT_STEP: Final = Metric(
    name="shardyard_checkpoint_step",
    kind="gauge",
    labels=("job_id",),
    help="Step of the newest published checkpoint.",
)
CHECKPOINT_SECONDS: Final = Metric(
    name="shardyard_checkpoint_duration_seconds",
    kind="gauge",
    labels=("job_id",),
    help="Seconds from the call of the newest save until it was published.",
)
CHECKPOINT_STALL_SECONDS: Final = Metric(
    name="shardyard_checkpoint_stall_seconds",
    kind="gauge",
    labels=("job_id",),
    help="Seconds that training stood still for the newest save.",
)
CHECKPOINT_BYTES: Final = Metric(
    name="shardyard_checkpoint_size_bytes",
    kind="gauge",
    labels=("job_id",),
    help="Bytes of the newest published checkpoint.",
)
CHECKPOINT_FAILURES: Final = Metric(
    name="shardyard_checkpoint_failures_total",
    kind="counter",
    labels=("job_id",),
    help="Saves that could not be published.",
)
RECOVERY_SECONDS: Final = Metric(
    name="shardyard_job_recovery_seconds",
    kind="gauge",
    labels=("job_id",),
    help="Seconds from the newest failure to the next finished optimizer step.",
)
CONTROLLER_TICKS: Final = Metric(
    name="shardyard_controller_ticks_total",
    kind="counter",
    labels=("outcome",),
    help="Ticks of the controller by outcome.",
)
CLUSTER_REACHABLE: Final = Metric(
    name="shardyard_cluster_reachable",
    kind="gauge",
    labels=(),
    help="1 if Ray answered the controller's last tick.",
)

ALL: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
