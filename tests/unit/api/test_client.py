"""What the client makes of every kind of answer, and of none. The transport is scripted; the service is not here."""

import json
import socket
from collections.abc import Callable

import httpx
import pytest

from orchestrator.client import (
    Client,
    ClientError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RejectedError,
    ServiceError,
    UnreachableError,
)

PROBLEM = {"content-type": "application/problem+json"}

Answer = Callable[[httpx.Request], httpx.Response]


def client_of(answer: Answer) -> Client:
    return Client("http://127.0.0.1:8321/", "a-token", transport=httpx.MockTransport(answer))


def job(state: str = "running", **changes: object) -> dict[str, object]:
    at = "2026-03-01T12:00:00Z"
    values: dict[str, object] = {
        "id": "j-1",
        "name": "nano",
        "state": state,
        "reason": "",
        "desired": "run",
        "generation": 1,
        "world_size": 2,
        "step": 3,
        "target_steps": 10,
        "counters": {},
        "created_at": at,
        "updated_at": at,
    }
    return values | changes


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RejectedError),
        (401, ForbiddenError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, RejectedError),
        (422, RejectedError),
        (429, ServiceError),
        (500, ServiceError),
        (503, ServiceError),
        (302, ServiceError),
    ],
)
@pytest.mark.parametrize("body", ["", "Content Too Large", "<html>", '{"detail": [1]}'])
def test_each_status_is_one_error_whatever_its_body_says(
    status: int, error: type[ClientError], body: str
) -> None:
    with client_of(lambda request: httpx.Response(status, text=body)) as client, pytest.raises(error):
        client.job("nano")


def test_a_refused_job_file_carries_every_problem_with_its_line() -> None:
    problems = [
        {"text": "job.yaml:7: train.optimizer.lr: -1 is not > 0", "line": 7, "path": "train.optimizer.lr"}
    ]
    body = {"title": "Unprocessable Entity", "status": 422, "detail": "1 problem", "problems": problems}
    with (
        client_of(lambda request: httpx.Response(422, json=body, headers=PROBLEM)) as client,
        pytest.raises(RejectedError, match="1 problem") as caught,
    ):
        client.submit("name: x")
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [(7, "train.optimizer.lr")]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"title": "Not Found", "status": 404, "detail": "no job has the id 'x'"}, "no job has the id 'x'"),
        ({"title": "Not Found", "status": 404}, "http://127.0.0.1:8321/api/v1/jobs/x answered 404 Not Found"),
    ],
)
def test_what_the_service_says_is_told_without_the_phrase_of_its_status(
    body: dict[str, object], told: str
) -> None:
    with (
        client_of(lambda request: httpx.Response(404, json=body, headers=PROBLEM)) as client,
        pytest.raises(NotFoundError) as caught,
    ):
        client.job("x")
    assert str(caught.value) == told


def test_an_answer_of_another_program_counts_as_no_answer() -> None:
    with (
        client_of(lambda request: httpx.Response(200, text="<html>hello</html>")) as client,
        pytest.raises(UnreachableError, match="something else than shardyard"),
    ):
        client.health()


def test_nothing_that_listens_is_unreachable_and_names_the_url() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with Client(url, None) as client, pytest.raises(UnreachableError, match=url):
            client.health()


def test_a_proxy_of_the_environment_never_sees_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with (
            Client(f"http://127.0.0.1:{unused.getsockname()[1]}", "a-token") as client,
            pytest.raises(UnreachableError),
        ):
            client.health()
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../jobs",
        "a/b",
        "a%2fb",
        "a?b",
        "a#b",
        "é",
        "a\nb",
        "a\x00",
        "my.job",
        "_x",
        "-x",
        "x\n",
        "x" * 81,
    ],
)
def test_what_is_no_id_or_name_never_reaches_a_url(name: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"{request.url} was called")

    with client_of(refuse) as client, pytest.raises(NotFoundError):
        client.job(name)


def test_a_reason_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with client_of(lambda request: httpx.Response(200, json=job())) as client:
        assert client.cancel("nano", reason="x" * 500).id == "j-1"
        with pytest.raises(RejectedError, match="500"):
            client.cancel("nano", reason="x" * 501)


def test_a_submit_sends_text_overrides_and_key() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(201, json=job("queued"))

    with client_of(answer) as client:
        client.submit("name: x", overrides=["train.steps=3"], source="a.yaml", idempotency_key="k1")
    [request] = sent
    assert (request.method, request.url.path) == ("POST", "/api/v1/jobs")
    assert request.headers["authorization"] == "Bearer a-token"
    assert request.headers["idempotency-key"] == "k1"
    assert json.loads(request.content) == {
        "spec": "name: x",
        "overrides": ["train.steps=3"],
        "source": "a.yaml",
        "resume_from": None,
    }


def test_all_jobs_walks_the_pages_and_keeps_the_filters() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.params))
        cursor = request.url.params.get("cursor")
        name = {None: "c", "2": "b", "1": "a"}[cursor]
        return httpx.Response(
            200,
            json={"jobs": [job(name=name)], "next_cursor": {None: "2", "2": "1", "1": None}[cursor]},
        )

    with client_of(answer) as client:
        assert [one.name for one in client.all_jobs(states=["running", "queued"])] == ["c", "b", "a"]
    assert len(asked) == 3
    assert all("state=running&state=queued" in query for query in asked)


def test_followed_events_resume_where_the_last_answer_ended() -> None:
    def event(cursor: int) -> dict[str, object]:
        at = "2026-03-01T12:00:00Z"
        return {
            "kind": "note",
            "generation": 1,
            "sequence": cursor,
            "at": at,
            "message": "",
            "cursor": cursor,
        }

    pages = {
        "0": {"events": [event(1), event(2)], "next_after": 2, "is_complete": False},
        "2": {"events": [], "next_after": 2, "is_complete": False},
    }
    last = {"events": [event(3)], "next_after": 3, "is_complete": True}
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        after = request.url.params["after"]
        seen.append(after)
        return httpx.Response(200, json=last if seen.count("2") == 2 else pages[after])

    with client_of(answer) as client:
        assert [one.cursor for one in client.follow_events("nano")] == [1, 2, 3]
    assert seen == ["0", "2", "2"]


def test_waiting_ends_with_the_job() -> None:
    states = iter(["running", "recovering", "cancelled"])

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, json={"events": [], "next_after": 0})
        return httpx.Response(200, json=job(next(states)))

    with client_of(answer) as client:
        assert client.wait("nano").state == "cancelled"


def test_waiting_gives_the_job_as_it_is_when_time_is_up() -> None:
    with client_of(lambda request: httpx.Response(200, json=job())) as client:
        assert client.wait("nano", timeout_seconds=0.0).state == "running"


def test_keys_of_a_newer_service_are_ignored() -> None:
    with client_of(lambda request: httpx.Response(200, json=job(colour="blue"))) as client:
        assert client.job("nano").id == "j-1"
