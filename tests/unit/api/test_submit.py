"""What comes in: job files, bodies and queries, right and wrong."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from orchestrator.client import ConflictError, NotFoundError, RejectedError

JSON = {"Content-Type": "application/json"}


def test_a_job_file_is_taken_once_for_one_idempotency_key(yard, job_file: str) -> None:
    first = yard.http.post("/api/v1/jobs", json={"spec": job_file}, headers={"Idempotency-Key": "k"})
    again = yard.http.post("/api/v1/jobs", json={"spec": job_file}, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["location"] == f"/api/v1/jobs/{first.json()['id']}"
    with pytest.raises(ConflictError):
        yard.client.submit(job_file, overrides=["train.steps=11"], idempotency_key="k")


def test_twenty_submits_with_one_key_at_once_make_one_job(yard, job_file: str) -> None:
    def submit(_: int) -> httpx.Response:
        headers = {"Idempotency-Key": "k", "Authorization": yard.http.headers["authorization"]}
        return httpx.post(
            f"{yard.url}/api/v1/jobs", json={"spec": job_file}, headers=headers, trust_env=False, timeout=30
        )

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(submit, range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(yard.client.jobs().jobs) == 1


def test_a_wrong_job_file_is_refused_with_line_rule_and_remedy_and_nothing_is_queued(
    shared_yard, job_file: str
) -> None:
    wrong = job_file + "optimiser: {lr: 1}\nengine: {kind: fspd}\n"
    for call in (shared_yard.client.submit, shared_yard.client.validate):
        with pytest.raises(RejectedError) as caught:
            call(wrong, source="mine.yaml")
        problems = caught.value.problems
        assert {problem.line for problem in problems} == {6, 7}
        assert all(problem.text.startswith(f"mine.yaml:{problem.line}: ") for problem in problems)
    assert shared_yard.client.jobs().jobs == []


def test_a_valid_job_file_is_shown_with_its_defaults_and_not_queued(shared_yard, job_file: str) -> None:
    valid = shared_yard.client.validate(job_file, overrides=["train.steps=7"])
    assert valid.name == "nano"
    assert valid.spec["train"]["steps"] == 7
    assert valid.spec["checkpoint"]["every_steps"] == 50
    assert shared_yard.client.jobs().jobs == []


def test_the_schema_of_a_job_file_names_its_parts(shared_yard) -> None:
    assert {"model", "data", "train", "engine", "scaling"} <= set(shared_yard.client.schema()["properties"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"spec": 1}',
        b'{"spec": "\xff"}',
        b'{"spec": "x", "extra": 1}',
        b"null",
    ],
)
def test_a_body_that_is_no_submission_is_refused_and_the_service_lives(shared_yard, content: bytes) -> None:
    answer = shared_yard.http.post("/api/v1/jobs", content=content, headers=JSON)
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"
    shared_yard.client.health()


@pytest.mark.parametrize(
    "spec",
    [
        "[" * 5000,
        "- a\n- b\n",
        "",
        "a: 1\n---\nb: 2\n",
        "\x00\x01",
        "a: !!python/object/apply:os.system [id]",
    ],
)
def test_text_that_is_no_job_file_is_refused_and_the_service_lives(shared_yard, spec: str) -> None:
    with pytest.raises(RejectedError):
        shared_yard.client.submit(spec)
    shared_yard.client.health()


def announced() -> bytes:
    return b"a" * (20 << 20)


def streamed() -> Iterator[bytes]:
    return (b"a" * (1 << 16) for _ in range(320))


@pytest.mark.parametrize("body", [announced, streamed])
def test_a_body_of_20_mb_is_refused_before_it_is_kept(shared_yard, body) -> None:
    with contextlib.suppress(httpx.TransportError):  # it may answer and close while we are still sending
        assert shared_yard.http.post("/api/v1/jobs", content=body(), headers=JSON).status_code == 413
    shared_yard.client.health()
    assert shared_yard.client.jobs().jobs == []


@pytest.mark.parametrize(
    "query",
    [
        "state=runing",
        "limit=0",
        "limit=1001",
        "limit=x",
        "cursor=x",
        "cursor=-1",
        "statee=running",
        "name=a'b",
    ],
)
def test_a_wrong_query_is_refused_rather_than_ignored(shared_yard, query: str) -> None:
    answer = shared_yard.http.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"].startswith("query.")


def test_a_job_is_found_by_id_and_the_newest_by_name(yard, job_file: str) -> None:
    old, new = yard.client.submit(job_file), yard.client.submit(job_file)
    assert yard.client.job(old.id).id == old.id
    assert yard.client.job("nano").id == new.id
    with pytest.raises(NotFoundError, match="no-such"):
        yard.client.job("no-such")


def test_pages_of_jobs_are_complete_and_never_repeat_while_jobs_come(yard, job_file: str) -> None:
    before = [yard.client.submit(job_file).id for _ in range(7)]
    seen, cursor = [], None
    while True:
        page = yard.client.jobs(limit=3, cursor=cursor)
        seen += [job.id for job in page.jobs]
        yard.client.submit(job_file)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [job_id for job_id in seen if job_id in before] == before[::-1]
    assert len(seen) == len(set(seen))


def test_filters_come_before_the_cut(yard, job_file: str) -> None:
    first = yard.client.submit(job_file, overrides=["name=wanted"])
    for _ in range(4):
        yard.client.submit(job_file)
    assert [job.id for job in yard.client.jobs(name="wanted", limit=2).jobs] == [first.id]


def test_a_job_without_room_waits_and_says_what_for(yard, job_file: str) -> None:
    job = yard.client.submit(job_file, overrides=["scaling.cpus_per_worker=3"])
    seen = yard.client.wait(job.id, until=lambda job: "CPU" in job.reason, timeout_seconds=20)
    assert seen.state == "queued"
    assert "2 " in seen.reason


def test_a_queued_job_is_cancelled_and_a_cancelled_one_stays_as_it_is(yard, job_file: str) -> None:
    job = yard.client.submit(job_file, overrides=["scaling.cpus_per_worker=3"])
    yard.client.cancel(job.id, reason="a mistake", by="ada")
    ended = yard.client.wait(job.id, timeout_seconds=20)
    assert ended.state == "cancelled"
    assert "ada" in ended.reason
    assert yard.client.cancel(job.id).state == "cancelled"
    assert yard.http.post(f"/api/v1/jobs/{job.id}/cancel").json()["state"] == "cancelled"
