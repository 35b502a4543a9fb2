"""What a driver tells, and what readers hear of it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import httpx

from workers.contract.events import EventKind


def test_what_a_driver_tells_is_heard_once_and_in_order(shared_yard, job_file: str, say) -> None:
    driver = shared_yard.launch(job_file)
    assert driver.request.report_url == shared_yard.url
    first = [say.event(0), say.event(1)]
    assert driver.tell(events=first).acknowledged == 1
    assert driver.tell(events=[*first, say.event(2)]).acknowledged == 2
    heard = [one for one in shared_yard.client.events(driver.job_id).events if one.kind is EventKind.NOTE]
    assert [one.message for one in heard] == ["event 0", "event 1", "event 2"]
    assert shared_yard.client.job(driver.job_id).state == "running"


def test_every_time_leaves_in_utc_with_its_offset(shared_yard, job_file: str, say) -> None:
    driver = shared_yard.launch(job_file)
    driver.tell(events=[say.event(0)], samples=[say.sample(0)])
    bodies = [
        shared_yard.http.get(f"/api/v1/jobs/{driver.job_id}{part}").json()
        for part in ("", "/events", "/samples")
    ]
    times = [value for body in bodies for value in moments(body)]
    assert len(times) > 5
    assert all(value.endswith("Z") for value in times), times
    assert "2026-03-08T06:30:00Z" in times


def moments(body: object) -> list[str]:
    if isinstance(body, dict):
        named = [v for k, v in body.items() if (k == "at" or k.endswith("_at")) and v is not None]
        return named + [found for value in body.values() for found in moments(value)]
    if isinstance(body, list):
        return [found for value in body for found in moments(value)]
    return []


def test_a_waiting_reader_hears_an_event_when_it_comes(shared_yard, job_file: str, say) -> None:
    driver = shared_yard.launch(job_file)
    driver.tell()
    after = shared_yard.client.events(driver.job_id).next_after
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(
            shared_yard.http.get, f"/api/v1/jobs/{driver.job_id}/events?after={after}&wait=30"
        )
        driver.tell(events=[say.event(0)])
        page = heard.result(timeout=25).json()
    assert [one["message"] for one in page["events"]] == ["event 0"]


def test_a_reader_who_waits_does_not_keep_the_service_from_ending(
    start_yard: Callable[..., AbstractContextManager], ray, job_file: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with start_yard(ray) as yard:
            job = yard.client.submit(job_file, overrides=["scaling.cpus_per_worker=3"])
            yard.client.wait(job.id, until=lambda job: "CPU" in job.reason, timeout_seconds=20)
            after = yard.client.events(job.id).next_after
            headers = dict(yard.http.headers)
            asking = threading.Event()

            def wait_for_news() -> object:
                asking.set()
                url = f"{yard.url}/api/v1/jobs/{job.id}/events?after={after}&wait=30"
                return httpx.get(url, headers=headers, timeout=60, trust_env=False).status_code

            waiting = pool.submit(wait_for_news)
            assert asking.wait(10)
        # Leaving the block proves it: the service ended although somebody waited.
        assert waiting.exception(timeout=20) is not None or waiting.result() in {200, 500, 503}


def test_samples_show_the_newest_of_each_rank(shared_yard, job_file: str, say) -> None:
    driver = shared_yard.launch(job_file)
    driver.tell(samples=[say.sample(0, 2), say.sample(1, 2)])
    driver.tell(samples=[say.sample(0, 3, loss=1.5), say.sample(1, 3, loss=1.5)])
    seen = shared_yard.client.samples(driver.job_id)
    assert [(one.rank, one.step, one.loss) for one in seen.latest] == [(0, 3, 1.5), (1, 3, 1.5)]
    assert [point.step for point in seen.losses] == sorted({point.step for point in seen.losses})
    assert seen.losses[-1].loss == 1.5


def test_a_loss_that_is_not_a_number_travels_to_the_client(shared_yard, job_file: str, say) -> None:
    driver = shared_yard.launch(job_file)
    driver.tell(samples=[say.sample(0, loss=float("nan"))])
    [latest] = shared_yard.client.samples(driver.job_id).latest
    assert latest.loss != latest.loss


def test_a_finished_driver_ends_its_job_and_its_timeline(shared_yard, job_file: str, say) -> None:
    driver = shared_yard.launch(job_file)
    driver.tell("finished", result=say.result(), events=[say.event(0, EventKind.FINISHED)], step=10)
    driver.end()
    ended = shared_yard.client.wait(driver.job_id, timeout_seconds=20)
    assert (ended.state, ended.result) == ("succeeded", say.result())
    assert EventKind.FINISHED in [one.kind for one in shared_yard.client.follow_events(driver.job_id)]


def test_a_driver_of_a_cancelled_job_is_told_to_stop(shared_yard, job_file: str) -> None:
    driver = shared_yard.launch(job_file)
    driver.tell()
    assert shared_yard.client.cancel(driver.job_id).desired == "cancel"
    assert driver.tell().action == "stop"
    driver.tell("stopped")
    driver.end()
    assert shared_yard.client.wait(driver.job_id, timeout_seconds=20).state == "cancelled"
