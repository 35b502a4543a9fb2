"""What Prometheus and Grafana are given is made from our names, is what the repository holds, and fires when it should."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deploy.monitoring.__main__ import DASHBOARDS, RULES, render_all
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.rules import RECORDED
from orchestrator.job import JobState
from workers.contract.failure import FailureClass
from workers.contract.metric_names import ALL

TOP = Path(__file__).parents[3]
FILES = render_all()
LABELS = {label for metric in ALL for label in metric.labels} | {"job", "le"}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def queries() -> Iterator[str]:
    """Every query of every dashboard and rule."""
    for alert in ALERTS:
        yield alert.expr
    yield from RECORDED.values()
    for name in FILES:
        if name.startswith(DASHBOARDS):
            yield from _queries_in(json.loads(FILES[name]))


def _queries_in(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        yield from (str(tree[key]) for key in ("expr", "query") if isinstance(tree.get(key), str))
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _queries_in(branch)


@pytest.mark.parametrize("name", FILES)
def test_the_repository_holds_what_is_made(name: str) -> None:
    assert (TOP / name).read_text() == FILES[name], "make monitoring"


def test_every_query_asks_for_names_that_are_exported() -> None:
    exported = {metric.name for metric in ALL} | set(RECORDED)
    asked = {
        name
        for query in queries()
        for name in re.findall(r"[a-z_]*:?shardyard_[a-z_]+(?::[a-z0-9]+)?", query)
    }
    assert len(asked) > 10
    assert asked <= exported


def test_every_label_value_that_a_query_names_exists() -> None:
    states, reasons = {state.value for state in JobState}, {word.value for word in FailureClass}
    known = {"state": states, "reason": reasons, "outcome": {"ok"}, "job": {"shardyard"}}
    found = {pair for query in queries() for pair in re.findall(r'(\w+)="([^"$]+)"', query)}
    assert found
    for label, value in found:
        assert value in known[label]


def test_every_metric_is_on_the_page_once() -> None:
    for metric in ALL:
        assert FILES["docs/metrics.md"].count(f"| `{metric.name}` |") == 1


def test_every_alert_has_its_runbook() -> None:
    for alert in ALERTS:
        assert f"\n## {alert.name}\n" in FILES["docs/runbooks.md"]
        assert alert.anchor == f"docs/runbooks.md#{alert.name.lower()}"


def test_every_dashboard_has_a_name_of_its_own_and_places_for_its_panels() -> None:
    boards = [json.loads(text) for name, text in FILES.items() if name.startswith(DASHBOARDS)]
    assert len({board["uid"] for board in boards}) == len(boards) == 3
    for board in boards:
        places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(x + w <= 24 for x, _, w, _ in places)


@needs_promtool
def test_promtool_accepts_configuration_and_rules(tmp_path: Path) -> None:
    shutil.copytree(TOP / "deploy" / "prometheus", tmp_path / "prometheus")
    for command in (["config", "--syntax-only", "prometheus.yml"], ["rules", "rules/shardyard.yaml"]):
        done = subprocess.run(
            ["promtool", "check", *command],
            cwd=tmp_path / "prometheus",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """Told to promtool as series and moments in `alerts_test.yaml`."""
    cases = YAML(typ="safe").load(TOP / "tests" / "unit" / "deploy" / "alerts_test.yaml")
    told = {test["alertname"] for case in cases["tests"] for test in case["alert_rule_test"]}
    assert told == {alert.name for alert in ALERTS}, "each alert has a case"
    shutil.copy(TOP / RULES, tmp_path / "shardyard.yaml")
    shutil.copy(TOP / "tests" / "unit" / "deploy" / "alerts_test.yaml", tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
