"""The two pages about metrics: what each one is, and what to do at each alert."""

from typing import Final

from deploy.monitoring.alerts import ALERTS, Alert
from deploy.monitoring.rules import RECORDED
from orchestrator.metrics import RANK_SERIES_LIMIT
from workers.contract.metric_names import ALL, Metric

HEADER: Final = "Made by `make monitoring`; do not edit.\n"


def render_metrics_page() -> str:
    """Return `docs/metrics.md`."""
    return "\n".join(
        [
            "# Metrics",
            "",
            HEADER,
            "The orchestrator serves them at `/metrics`, for whoever has its token, from the state of the jobs that have not",
            "ended: a job's series end with it, and counters go on where they were after a restart of a rank, a job or the",
            f"service. `rank` is a number while a job has at most {RANK_SERIES_LIMIT} ranks, and above that `min`, `mean` and `max`.",
            "`shardyard_job_info` joins what a job is called, and its engine and ZeRO stage, to every other series:",
            "",
            "```",
            "shardyard_job_memory_bytes * on (job_id) group_left (name, engine, zero_stage) shardyard_job_info",
            "```",
            "",
            "| name | type | unit | labels | meaning |",
            "|---|---|---|---|---|",
            *(_metric(metric) for metric in ALL),
            "",
            "Recorded by [deploy/prometheus/rules/shardyard.yaml](../deploy/prometheus/rules/shardyard.yaml):",
            "",
            "| name | from |",
            "|---|---|",
            *(f"| `{name}` | `{expr}` |" for name, expr in RECORDED.items()),
            "",
            "What to do at each alert: [runbooks.md](runbooks.md).",
            "",
        ]
    )


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {_unit(metric)} | {labels} | {metric.help} |"


def _unit(metric: Metric) -> str:
    last = metric.name.removesuffix("_total").rpartition("_")[2]
    return last if last in ("seconds", "bytes", "tokens") else ""


def render_runbooks() -> str:
    """Return `docs/runbooks.md`."""
    return "\n".join(["# Runbooks", "", HEADER, *(_runbook(alert) for alert in ALERTS)])


def _runbook(alert: Alert) -> str:
    lasts = "" if alert.lasts == "0m" else f", for {alert.lasts}"
    steps = [f"{number}. {step}" for number, step in enumerate(alert.steps, start=1)]
    return "\n".join(
        [f"## {alert.name}", "", f"`{alert.expr}`{lasts} ({alert.severity})", "", alert.means, "", *steps, ""]
    )
