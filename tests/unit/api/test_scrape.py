"""The service about itself: cluster, metrics, history over a restart."""

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import pytest

from orchestrator.client import ForbiddenError


def test_the_cluster_is_shown_as_the_controller_saw_it(yard, job_file: str) -> None:
    yard.ray.launched(yard.client.submit(job_file).id)
    seen = yard.client.cluster()
    assert seen.is_reachable
    assert [(node.cpus, node.is_head) for node in seen.nodes] == [(4, True)]


def test_prometheus_finds_the_service_and_scrapes_a_live_job(yard, job_file: str, say) -> None:
    [group] = yard.http.get("/api/v1/prometheus/sd").json()
    driver = yard.launch(job_file)
    driver.tell(samples=[say.sample(0), say.sample(1)])
    text = httpx.get(
        f"{group['labels']['__scheme__']}://{group['targets'][0]}/metrics",
        headers=dict(yard.http.headers),
        trust_env=False,
    ).text
    assert f'shardyard_job_step{{job_id="{driver.job_id}"}} 3.0' in text
    assert (
        f'shardyard_job_memory_bytes{{category="parameters",job_id="{driver.job_id}",rank="1"}} 1000.0'
        in text
    )


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (`make apt`)")
def test_promtool_finds_nothing_to_say_about_a_scrape(yard, job_file: str, say) -> None:
    yard.launch(job_file).tell(samples=[say.sample(0), say.sample(1)])
    text = yard.http.get("/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_series_end_with_their_job_and_its_state_is_counted(yard, job_file: str, say) -> None:
    driver = yard.launch(job_file)
    driver.tell("finished", result=say.result(), samples=[say.sample(0)])
    driver.end()
    yard.client.wait(driver.job_id, timeout_seconds=20)
    text = yard.http.get("/metrics").text
    assert driver.job_id not in text
    assert 'shardyard_jobs{state="succeeded"} 1.0' in text


def test_history_and_counters_outlive_the_service(
    start_yard: Callable[..., AbstractContextManager], ray, job_file: str, say
) -> None:
    with start_yard(ray) as yard:
        driver = yard.launch(job_file)
        driver.tell(samples=[say.sample(0), say.sample(1)], events=[say.event(0)])
        before = yard.http.get("/metrics").text
        timeline = [one.cursor for one in yard.client.events(driver.job_id).events]
    with start_yard(ray) as yard:
        assert yard.client.job(driver.job_id).state == "running"
        after = yard.http.get("/metrics").text
        assert counters(before)
        assert counters(after) == counters(before)
        assert [one.cursor for one in yard.client.events(driver.job_id).events][: len(timeline)] == timeline


def counters(text: str) -> dict[str, str]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("shardyard_job_"))
    return {name: value for name, _, value in lines if "_total{" in name}


def test_a_client_with_a_wrong_token_is_told_so(shared_yard) -> None:
    with (
        type(shared_yard.client)(shared_yard.url, "not-the-token") as stranger,
        pytest.raises(ForbiddenError),
    ):
        stranger.jobs()


def test_many_finished_jobs_do_not_slow_a_list_of_the_live_ones(yard, job_file: str) -> None:
    for _ in range(50):
        job = yard.client.submit(job_file, overrides=["scaling.cpus_per_worker=3"])
        yard.client.cancel(job.id)
    live = [yard.client.submit(job_file).id for _ in range(3)]
    states = ["queued", "starting", "running", "recovering"]
    yard.client.wait(job.id, timeout_seconds=30)
    deadline = time.monotonic() + 30
    while len(found := [one.id for one in yard.client.jobs(states=states, limit=10).jobs]) > 3:
        assert time.monotonic() < deadline, "cancelled jobs never ended"
        yard.client.wait(found[-1], timeout_seconds=5)
    assert found == live[::-1]
