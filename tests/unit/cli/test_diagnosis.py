"""What the doctor concludes, and that it always says what to do."""

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.api.views import ClusterView, NodeView
from orchestrator.cli import diagnosis
from orchestrator.cli.diagnosis import Finding
from orchestrator.cli.doctor import cpu_quota

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
GIB = 1 << 30
NODES = [NodeView.model_validate({"id": "a", "name": "a", "address": "127.0.0.2", "cpus": 4, "gpus": 0})]

WELL = [
    diagnosis.python((3, 11, 7), "/usr/bin/python3"),
    diagnosis.ray_package("2.60.0"),
    diagnosis.torch_package({"version": "2.13.0", "gpus": 0}),
    diagnosis.worker_program("/usr/bin/shardyard-worker"),
    diagnosis.deepspeed_ops({"built": ["pin_memory", "async_io"], "missing": []}),
    diagnosis.cpus(4, None),
    diagnosis.cpus(4, 4.0),
    diagnosis.memory(8 * GIB, None, 0),
    diagnosis.shared_memory(GIB),
    diagnosis.open_files(65_536),
    diagnosis.disk("/storage", 50 * GIB, is_writable=True),
    diagnosis.loopback(None),
    diagnosis.clock(NOW),
    diagnosis.token("/home/token", 0o600),
    diagnosis.token("/home/token", None),
    diagnosis.port(8321, is_free=True),
    diagnosis.orchestrator("http://127.0.0.1:8321", version="0.1.0", own_version="0.1.0"),
    diagnosis.cluster(ClusterView(is_reachable=True, nodes=NODES, seen_at=NOW), now=NOW),
]
ILL = [
    ("fail", diagnosis.python((3, 10, 1), "/usr/bin/python3")),
    ("fail", diagnosis.ray_package(None)),
    ("fail", diagnosis.ray_package("2.61.0")),
    ("fail", diagnosis.torch_package("ModuleNotFoundError: No module named 'torch'")),
    ("fail", diagnosis.worker_program(None)),
    ("warn", diagnosis.deepspeed_ops({"built": [], "missing": ["async_io"]})),
    ("warn", diagnosis.deepspeed_ops("ModuleNotFoundError: No module named 'deepspeed'")),
    ("warn", diagnosis.cpus(64, 2.0)),
    ("warn", diagnosis.memory(64 * GIB, 4 * GIB, 3 * GIB)),
    ("warn", diagnosis.shared_memory(64 << 20)),
    ("fail", diagnosis.shared_memory(None)),
    ("warn", diagnosis.open_files(1024)),
    ("warn", diagnosis.disk("/storage", GIB, is_writable=True)),
    ("fail", diagnosis.disk("/storage", 50 * GIB, is_writable=False)),
    ("fail", diagnosis.loopback("Cannot assign requested address")),
    ("warn", diagnosis.clock(datetime(1970, 1, 1, tzinfo=UTC))),
    ("fail", diagnosis.token("/home/token", 0o644)),
    ("fail", diagnosis.port(8321, is_free=False)),
    ("warn", diagnosis.orchestrator(None, version=None, own_version="0.1.0")),
    (
        "fail",
        diagnosis.orchestrator(
            "http://x", version=None, own_version="0.1.0", error="no answer from http://x"
        ),
    ),
    ("warn", diagnosis.orchestrator("http://x", version="0.2.0", own_version="0.1.0")),
    ("fail", diagnosis.cluster(ClusterView(is_reachable=False, error="connection refused"), now=NOW)),
    (
        "warn",
        diagnosis.cluster(
            ClusterView(is_reachable=True, nodes=NODES, seen_at=NOW - timedelta(minutes=5)), now=NOW
        ),
    ),
]


@pytest.mark.parametrize("finding", WELL, ids=lambda f: f.found)
def test_what_is_well_needs_no_remedy(finding: Finding) -> None:
    assert (finding.verdict, finding.remedy) == ("ok", "")


@pytest.mark.parametrize(("verdict", "finding"), ILL, ids=[f.found for _, f in ILL])
def test_what_is_wrong_is_named_with_a_remedy(verdict: str, finding: Finding) -> None:
    assert finding.verdict == verdict
    assert finding.found
    assert finding.remedy


def test_a_clock_ahead_of_ours_is_told_as_such() -> None:
    view = ClusterView(is_reachable=True, nodes=NODES, seen_at=NOW + timedelta(hours=1))
    assert "in the future" in diagnosis.cluster(view, now=NOW).found


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000", 2.0), ("50000 100000", 0.5), ("max 100000", None), ("", None), ("x", None)],
)
def test_a_cpu_quota_is_read_as_the_kernel_writes_it(text: str, quota: float | None) -> None:
    assert cpu_quota(text) == quota
