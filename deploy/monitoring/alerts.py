"""The alerts, each with what a person does when it fires."""

from dataclasses import dataclass
from typing import Final, Literal

from workers.contract import metric_names as names

RUNBOOKS: Final = "docs/runbooks.md"
RUNNING: Final = f'max by (job_id) ({names.JOB_STATE.name}{{state="running"}}) == 1'


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert and its runbook. `expr` is PromQL; `lasts` is how long it holds before it fires."""

    name: str
    expr: str
    lasts: str
    severity: Literal["page", "warning"]
    summary: str  # may use {{ $labels.job_id }} and {{ $value }}
    means: str
    steps: tuple[str, ...]  # what to do, in order

    @property
    def anchor(self) -> str:
        """Where its runbook lies on the page."""
        return f"{RUNBOOKS}#{self.name.lower()}"


ALERTS: Final = (
    Alert(
        name="ShardyardDown",
        expr='up{job="shardyard"} == 0',
        lasts="1m",
        severity="page",
        summary="Prometheus cannot scrape the orchestrator",
        means="Nobody can submit, and nothing new is granted. Jobs that run go on, and tell what happened later.",
        steps=(
            "`shardyard doctor` on its machine says whether the process lives and its port answers.",
            "Read the end of the service's log in `$SHARDYARD_HOME`.",
            "Start it again with `shardyard up` (or its service unit): it adopts the jobs that run.",
            "If the process lives, look at the token file of the scrape configuration: 401 looks the same from here.",
        ),
    ),
    Alert(
        name="ShardyardClusterUnreachable",
        expr=f"{names.CLUSTER_REACHABLE.name} == 0",
        lasts="2m",
        severity="page",
        summary="Ray does not answer the orchestrator",
        means="Nothing is granted, and the death of a driver is not seen. Ranks train on as long as Ray's GCS answers them.",
        steps=(
            "`shardyard doctor` names the address that was asked and what came back.",
            "Look at the head node: is `ray status` answered there, is its disk full?",
            "A head that is lost for good: start a new one at the same address; open jobs go on as their next generation.",
        ),
    ),
    Alert(
        name="ShardyardControllerStuck",
        expr=f'rate({names.CONTROLLER_TICKS.name}{{outcome="ok"}}[5m]) == 0',
        lasts="5m",
        severity="page",
        summary="The controller has not finished a look at the cluster for five minutes",
        means="Jobs are taken in but not started, and ends are not noticed.",
        steps=(
            "Is Ray unreachable? Then that alert fires, too, and is the cause.",
            "Read the service's log: each failed tick says why.",
            "Restart the service; the loop repairs what a tick left half done.",
        ),
    ),
    Alert(
        name="ShardyardJobStalled",
        expr=f"changes({names.JOB_STEP.name}[15m]) == 0 and on (job_id) {RUNNING}",
        lasts="5m",
        severity="page",
        summary="Job {{ $labels.job_id }} runs, but has finished no step for 15 minutes",
        means="A step is longer than that, or something waits: a loader, a collective, a file system.",
        steps=(
            "`shardyard show JOB` tells the phase and the last step of each rank.",
            "`shardyard logs JOB --rank R` of the rank whose phase differs from the others'.",
            "A step that is that long is no fault: use a smaller global batch, or silence this alert for the job.",
        ),
    ),
    Alert(
        name="ShardyardJobCrashLoop",
        expr=f"sum by (job_id) (increase({names.JOB_RESTARTS.name}[30m])) > 3",
        lasts="0m",
        severity="warning",
        summary="Job {{ $labels.job_id }} was restarted {{ $value | humanize }} times in 30 minutes",
        means="Something takes ranks, agents or nodes away again and again. `failure.max_failures` ends the job at last.",
        steps=(
            "`shardyard events JOB` shows each verdict: whose fault, which rank, which node.",
            "The same node each time: take it out of the cluster. The same step: look at the data of that step.",
            "Verdicts of `agent_lost` on all nodes: the scheduler below Ray preempts, or memory of the nodes runs out.",
        ),
    ),
    Alert(
        name="ShardyardOutOfMemory",
        expr=f'sum by (job_id) (increase({names.JOB_RESTARTS.name}{{reason="out_of_memory"}}[1h])) > 0',
        lasts="0m",
        severity="warning",
        summary="Job {{ $labels.job_id }} ran out of memory",
        means="A rank could not allocate, or its node was about to end it.",
        steps=(
            "`shardyard show JOB --memory` tells bytes by category at the peak.",
            "Smaller `train.batch.micro`, `engine.activation_checkpointing: full`, a higher `zero_stage`, `offload`: in this order.",
        ),
    ),
    Alert(
        name="ShardyardLossNotFinite",
        expr=f"{names.JOB_LOSS.name} != {names.JOB_LOSS.name} or abs({names.JOB_LOSS.name}) == Inf",
        lasts="0m",
        severity="warning",
        summary="The loss of job {{ $labels.job_id }} is not a number",
        means="Training has diverged, or a batch holds what the model cannot take.",
        steps=(
            "`shardyard events JOB` names the step and the rank that saw it first.",
            "Begin again below it with a lower rate: `shardyard submit job.yaml --resume-from JOB@STEP`.",
        ),
    ),
    Alert(
        name="ShardyardCheckpointStale",
        expr=f"{names.CHECKPOINT_AGE_SECONDS.name} > 7200 and on (job_id) {RUNNING}",
        lasts="5m",
        severity="warning",
        summary="The newest checkpoint of job {{ $labels.job_id }} is {{ $value | humanizeDuration }} old",
        means="So much work would be done again after the next failure.",
        steps=(
            "Does `shardyard events JOB` tell of saves that failed? Then the storage is the cause.",
            "Else lower `checkpoint.every_steps`: a save costs training next to nothing.",
        ),
    ),
    Alert(
        name="ShardyardCheckpointFailing",
        expr=f"increase({names.CHECKPOINT_FAILURES.name}[30m]) > 0",
        lasts="0m",
        severity="page",
        summary="Job {{ $labels.job_id }} cannot save",
        means="Training goes on, and every save is tried again. The newest published checkpoint is intact.",
        steps=(
            "`shardyard events JOB` quotes the storage's own words: no space, no permission, no answer.",
            "Free space, or lower `checkpoint.keep`; then the next save publishes.",
        ),
    ),
    Alert(
        name="ShardyardQueueBacklog",
        expr=f'{names.JOBS.name}{{state="queued"}} > 0',
        lasts="1h",
        severity="warning",
        summary="{{ $value }} jobs have waited for an hour",
        means="The cluster is full, or one job asks for more than it will ever have.",
        steps=(
            "`shardyard ls --state queued` tells what each one waits for.",
            "A job that can never fit: cancel it, and submit it with fewer workers.",
        ),
    ),
)
