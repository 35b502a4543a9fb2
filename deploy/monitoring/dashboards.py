"""The three dashboards: the fleet, one job, and memory by stage."""

from collections.abc import Mapping
from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.monitoring.panels import chart, choice, figure, listing, page
from deploy.monitoring.rules import MEMORY_BYTES, STEP_SECONDS, TOKENS_PER_SECOND
from workers.contract import metric_names as names

NAMED: Final = f"on (job_id) group_left (name) {names.JOB_INFO.name}"
STAGED: Final = f"on (job_id) group_left (name, engine, zero_stage) {names.JOB_INFO.name}"
THIS: Final = '{job_id="$job_id"}'


def render_dashboards() -> Mapping[str, str]:
    """Return each dashboard's JSON by its file's name."""
    made = {"fleet": _fleet(), "job": _job(), "memory": _memory()}
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{name}.json": encoder.encode(board.build()) + "\n" for name, board in made.items()}


def _fleet() -> Dashboard:
    return (
        page("shardyard-fleet", "shardyard: fleet", "Every job that has not ended, and the service itself.")
        .with_panel(figure("Running", f'{names.JOBS.name}{{state="running"}}'))
        .with_panel(figure("Waiting", f'{names.JOBS.name}{{state="queued"}}'))
        .with_panel(figure("Recovering", f'{names.JOBS.name}{{state="recovering"}}'))
        .with_panel(figure("Tokens a second", f"sum({TOKENS_PER_SECOND})"))
        .with_panel(figure("Ranks", f"sum({names.JOB_WORLD_SIZE.name})"))
        .with_panel(figure("Ray answers", names.CLUSTER_REACHABLE.name, tells="1: yes"))
        .with_panel(chart("Jobs by state", (names.JOBS.name, "{{state}}"), is_stacked=True))
        .with_panel(chart("Tokens a second", (f"{TOKENS_PER_SECOND} * {NAMED}", "{{name}}"), is_stacked=True))
        .with_panel(
            chart(
                "Restarts in the last hour",
                (
                    f"sum by (name, reason) (increase({names.JOB_RESTARTS.name}[1h]) * {NAMED})",
                    "{{name}}: {{reason}}",
                ),
                tells="Each one by whose fault it was",
            )
        )
        .with_panel(
            chart(
                "Age of the newest checkpoint",
                (f"{names.CHECKPOINT_AGE_SECONDS.name} * {NAMED}", "{{name}}"),
                unit="s",
                tells="What the next failure would cost at most",
            )
        )
        .with_panel(listing("Live jobs", names.JOB_INFO.name))
    )


def _job() -> Dashboard:
    step = f"{names.JOB_STEP.name}{THIS}"
    return (
        page(
            "shardyard-job",
            "shardyard: job",
            "One job: progress, loss, speed, memory, checkpoints, restarts.",
        )
        .with_variable(choice("name", "Job", f"label_values({names.JOB_INFO.name}, name)"))
        .with_variable(choice("job_id", "Id", f'label_values({names.JOB_INFO.name}{{name="$name"}}, job_id)'))
        .with_panel(figure("Step", step))
        .with_panel(figure("Progress", f"{step} / {names.JOB_TARGET_STEPS.name}{THIS}", unit="percentunit"))
        .with_panel(figure("Ranks", f"{names.JOB_WORLD_SIZE.name}{THIS}"))
        .with_panel(figure("Tokens a second", f"{TOKENS_PER_SECOND}{THIS}"))
        .with_panel(figure("Restarts", f"sum({names.JOB_RESTARTS.name}{THIS})"))
        .with_panel(figure("Last recovery", f"{names.RECOVERY_SECONDS.name}{THIS}", unit="s"))
        .with_panel(
            chart(
                "Loss",
                (f"{names.JOB_LOSS.name}{THIS}", "training"),
                (f"{names.JOB_VALIDATION_LOSS.name}{THIS}", "held out"),
            )
        )
        .with_panel(chart("Gradient norm", (f"{names.JOB_GRAD_NORM.name}{THIS}", "before clipping")))
        .with_panel(
            chart(
                "Memory by category, fullest rank",
                (f"{MEMORY_BYTES}{THIS}", "{{category}}"),
                unit="bytes",
                is_stacked=True,
            )
        )
        .with_panel(chart("Step", (f"{names.JOB_STEP_SECONDS.name}{THIS}", "rank {{rank}}"), unit="s"))
        .with_panel(
            chart(
                "A save",
                (f"{names.CHECKPOINT_SECONDS.name}{THIS}", "until published"),
                (f"{names.CHECKPOINT_STALL_SECONDS.name}{THIS}", "training stood still"),
                unit="s",
            )
        )
        .with_panel(chart("Restarts", (f"sum by (reason) ({names.JOB_RESTARTS.name}{THIS})", "{{reason}}")))
    )


def _memory() -> Dashboard:
    by_stage = "sum by (name, engine, zero_stage)"
    return (
        page(
            "shardyard-memory",
            "shardyard: memory by stage",
            "What each rank holds, by category, beside the engine and the ZeRO stage that decide where it lies.",
        )
        .with_variable(choice("name", "Job", f"label_values({names.JOB_INFO.name}, name)"))
        .with_variable(choice("job_id", "Id", f'label_values({names.JOB_INFO.name}{{name="$name"}}, job_id)'))
        .with_panel(
            chart(
                "By category, fullest rank",
                (f"{MEMORY_BYTES}{THIS}", "{{category}}"),
                unit="bytes",
                is_stacked=True,
            )
        )
        .with_panel(
            chart(
                "By rank",
                (f"sum by (rank) ({names.JOB_MEMORY_BYTES.name}{THIS})", "rank {{rank}}"),
                unit="bytes",
            )
        )
        .with_panel(
            chart(
                "Jobs side by side, fullest rank",
                (f"{by_stage} ({MEMORY_BYTES} * {STAGED})", "{{name}}: {{engine}} {{zero_stage}}"),
                unit="bytes",
                tells="The same model at other stages: submit it under other names",
            )
        )
        .with_panel(
            chart("Resident memory", (f"{names.JOB_RSS_BYTES.name}{THIS}", "rank {{rank}}"), unit="bytes")
        )
        .with_panel(chart("Slowest rank's step", (f"{STEP_SECONDS}{THIS}", "seconds"), unit="s"))
    )
