"""A real Prometheus scrapes a yard through a killed rank, a killed orchestrator and the end of the job."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_yard import LiveYard, free_port, llama, wait_until
from ruamel.yaml import YAML

TOP = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]


class Prometheus:
    """Answers PromQL over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str) -> Mapping[str, float]:
        """Values now, by their labels as text."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": query}, timeout=30).json()
        assert answer["status"] == "success", answer
        return {_labels(one["metric"]): float(one["value"][1]) for one in answer["data"]["result"]}

    def value(self, query: str) -> float | None:
        """The one value of a query; None where there is no series."""
        values = list(self.ask(query).values())
        assert len(values) < 2, values
        return values[0] if values else None


def _labels(metric: Mapping[str, str]) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted(metric.items()) if k not in ("__name__", "instance", "job"))


@pytest.fixture
def prometheus(clean_yard: LiveYard, tmp_path: Path) -> Iterator[Prometheus]:
    """It finds the service through the service's own list, with the rules that we ship."""
    shutil.copytree(TOP / "deploy" / "prometheus" / "rules", tmp_path / "rules")
    assert clean_yard.yard is not None
    url, port = clean_yard.yard.service.url, free_port()
    login = {"type": "Bearer", "credentials_file": str(clean_yard.home / "token")}
    found: dict[str, Any] = {
        "url": f"{url}/api/v1/prometheus/sd",
        "authorization": login,
        "refresh_interval": "1s",
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules/*.yaml"],
        "scrape_configs": [{"job_name": "shardyard", "authorization": login, "http_sd_configs": [found]}],
    }
    YAML().dump(config, tmp_path / "prometheus.yml")
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        asked = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(lambda: _is_up(asked), f"Prometheus scrapes: {(tmp_path / 'prometheus.log').read_text()}")
        yield asked
    finally:
        process.terminate()
        process.wait(timeout=30)


def _is_up(prometheus: Prometheus) -> bool:
    try:
        return prometheus.value('up{job="shardyard"}') == 1
    except httpx.TransportError:
        return False


def test_counters_never_fall_and_series_end_with_the_job(clean_yard: LiveYard, prometheus: Prometheus):
    """B104, B107."""
    job = clean_yard.submit(llama("scraped", steps=4_000))
    this = f'{{job_id="{job.id}"}}'
    wait_until(lambda: (prometheus.value(f"shardyard_job_step{this}") or 0) > 20, "steps are scraped")
    wait_until(lambda: prometheus.ask(f"job_id_category:shardyard_job_memory_bytes:max{this}"), "rules run")
    ranks = f"count by (rank) (shardyard_job_memory_bytes{this})"
    assert set(prometheus.ask(ranks)) == {"rank=0", "rank=1"}

    clean_yard.kill_rank(job, 1)
    restarts = f"shardyard_job_restarts_total{this}"
    wait_until(
        lambda: prometheus.ask(restarts) == {f"job_id={job.id},reason=rank_lost": 1.0}, "restart is counted"
    )
    wait_until(lambda: set(prometheus.ask(ranks)) == {"rank=0", "rank=1"}, "both ranks are there again")

    clean_yard.kill_service()
    clean_yard.start_service()
    seen = prometheus.value(f"shardyard_job_tokens_total{this}")
    wait_until(
        lambda: (prometheus.value(f"shardyard_job_tokens_total{this}") or 0) > (seen or 0), "tokens go on"
    )
    assert prometheus.value(f"resets(shardyard_job_tokens_total{this}[5m])") == 0
    assert prometheus.ask(restarts) == {f"job_id={job.id},reason=rank_lost": 1.0}

    with clean_yard.client as client:
        client.cancel(job.id)
    clean_yard.finish(job)
    wait_until(
        lambda: not prometheus.ask(f'{{__name__=~"shardyard_.+",job_id="{job.id}"}}'), "its series end"
    )
    assert prometheus.value('shardyard_jobs{state="running"}') == 0
