"""`make monitoring`: writes everything that is made here into the repository."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.monitoring.dashboards import render_dashboards
from deploy.monitoring.pages import render_metrics_page, render_runbooks
from deploy.monitoring.rules import render_rules

TOP: Final = Path(__file__).resolve().parents[2]
RULES: Final = "deploy/prometheus/rules/shardyard.yaml"
DASHBOARDS: Final = "deploy/grafana/dashboards"


def render_all() -> Mapping[str, str]:
    """Return the content of every file by its path in the repository."""
    return {
        RULES: render_rules(),
        "docs/metrics.md": render_metrics_page(),
        "docs/runbooks.md": render_runbooks(),
        **{f"{DASHBOARDS}/{name}": text for name, text in render_dashboards().items()},
    }


def main() -> None:
    """Write what differs, and say so."""
    for name, text in render_all().items():
        path = TOP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"written: {name}")


if __name__ == "__main__":
    main()
