"""Prometheus rules: what dashboards ask again and again, computed once, and the alerts."""

from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML

from deploy.monitoring.alerts import ALERTS, Alert
from workers.contract import metric_names as names

HEADER: Final = "# Made by `make monitoring`; do not edit.\n"

TOKENS_PER_SECOND: Final = "job_id:shardyard_job_tokens:rate1m"
STEP_SECONDS: Final = "job_id:shardyard_job_step_duration_seconds:max"
MEMORY_BYTES: Final = "job_id_category:shardyard_job_memory_bytes:max"
RECORDED: Final = {
    TOKENS_PER_SECOND: f"rate({names.JOB_TOKENS.name}[1m])",
    STEP_SECONDS: f"max by (job_id) ({names.JOB_STEP_SECONDS.name})",
    MEMORY_BYTES: f"max by (job_id, category) ({names.JOB_MEMORY_BYTES.name})",
}


def render_rules() -> str:
    """Return the rules file."""
    groups = [
        {"name": "shardyard", "rules": [{"record": name, "expr": expr} for name, expr in RECORDED.items()]},
        {"name": "shardyard-alerts", "rules": [_alert(alert) for alert in ALERTS]},
    ]
    yaml = YAML()
    yaml.width = 10_000  # a query stays on one line
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    yaml.dump({"groups": groups}, text)
    return HEADER + text.getvalue()


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.means, "runbook": alert.anchor},
    }
