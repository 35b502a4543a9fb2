"""Following a job, against a service that answers as it is scripted to."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from orchestrator.api.views import EventView, JobView, SamplesView
from orchestrator.cli import follow
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.follow import Follower, LogTail, result_code
from orchestrator.cli.screen import Screen
from orchestrator.client import Client, UnreachableError

MakeScreen = Callable[..., Screen]
MakeJob = Callable[..., JobView]


class Script:
    """A service with one job, whose timeline, logs and state grow by one stage a look."""

    def __init__(self, job: MakeJob, events: list[EventView], samples: SamplesView) -> None:
        self.job, self.told, self.samples = job, events, samples
        self.logs = {"1/0/0/0": b"hello\nhal", "1/0/0/1": b"progress 10%\rprogress 20%\rdone\n"}
        self.stages = [8, 14, len(events)]
        self.failures = 0
        self.silent: str | None = None  # the path that does not answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1/jobs/j-7f3k2m9q").removeprefix("/")
        if self.failures and path == "events":
            self.failures -= 1
            raise httpx.ConnectError("refused")
        if path == self.silent:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=self._answer(path, request.url.params))

    def _answer(self, path: str, params: httpx.QueryParams) -> Any:
        ended = len(self.stages) == 1
        match path.split("/"):
            case ["events"]:
                shown = [e for e in self.told[: self.stages[0]] if e.cursor > int(params["after"])]
                complete = ended
                if len(self.stages) > 1:
                    self.stages.pop(0)
                return {
                    "events": [e.model_dump(mode="json") for e in shown],
                    "next_after": shown[-1].cursor if shown else int(params["after"]),
                    "is_complete": complete,
                }
            case [""]:
                return self.job(state="succeeded" if ended else "running").model_dump(mode="json")
            case ["samples"]:
                return self.samples.model_dump(mode="json")
            case ["logs"]:
                return [self._log(name, data) for name, data in self.logs.items()]
            case ["logs", *name]:
                data = self.logs["/".join(name)]
                offset = int(params["offset"])
                part = data[offset : offset + int(params["limit"])]
                end = offset + len(part)
                return {"text": part.decode(), "offset": offset, "next_offset": end, "size_bytes": len(data)}
            case _:
                raise AssertionError(path)

    def _log(self, name: str, data: bytes) -> dict[str, Any]:
        generation, attempt, round_, rank = map(int, name.split("/"))
        return {
            "generation": generation,
            "attempt": attempt,
            "round": round_,
            "rank": rank,
            "size_bytes": len(data),
            "modified_at": "2026-12-01T13:03:40Z",
        }


@pytest.fixture
def script(job: MakeJob, events: list[EventView], samples: SamplesView) -> Script:
    return Script(job, events, samples)


@pytest.fixture
def client(script: Script) -> Client:
    return Client("http://yard", "a-token", transport=httpx.MockTransport(script))


def output(screen: Screen) -> str:
    return screen.out.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_a_job_is_followed_to_its_end_and_each_event_is_told_once(
    client: Client, screen: MakeScreen, job: MakeJob
) -> None:
    page = screen()
    end = Follower(client, page, job()).run()
    assert end.state == "succeeded"
    text = output(page)
    assert text.count("killed by signal 9") == 1
    assert text.index("first step of round 0") < text.index("restart 1 of 5") < text.index("succeeded")


def test_log_lines_come_whole_and_with_their_rank(
    client: Client, screen: MakeScreen, job: MakeJob, script: Script
) -> None:
    page = screen()
    Follower(client, page, job()).run()
    lines = output(page).splitlines()
    assert [line for line in lines if line.startswith("rank 0")] == ["rank 0 │ hello", "rank 0 │ hal"]
    assert lines.index("rank 0 │ hal") > lines.index("rank 1 │ done"), "it had not ended before the job had"
    assert [line for line in lines if line.startswith("rank 1")] == [
        "rank 1 │ progress 10%",
        "rank 1 │ progress 20%",
        "rank 1 │ done",
    ]


def test_a_line_that_ends_later_is_told_then(client: Client, script: Script) -> None:
    tail = LogTail()
    assert "hello" in [line for _, line in tail.read(client, "j-7f3k2m9q")]
    script.logs["1/0/0/0"] += b"f a line\n"
    assert [line for _, line in tail.read(client, "j-7f3k2m9q")] == ["half a line"]
    assert list(tail.read(client, "j-7f3k2m9q")) == []


def test_what_is_left_at_the_end_is_told_however_much_and_without_a_last_newline(
    client: Client, script: Script, screen: MakeScreen, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LOG_BYTES_A_LOOK", 64)
    script.logs["1/0/0/0"] = b"step\n" * 500 + b"the last word"
    shown = screen()
    Follower(client, shown, job()).run()
    told = output(shown)
    assert told.count("rank 0 │ step") == 500
    assert "rank 0 │ the last word" in told


def test_lines_that_were_read_are_told_though_the_next_log_does_not_answer(
    client: Client, script: Script
) -> None:
    tail, told = LogTail(), []
    del script.logs["1/0/0/1"]
    script.logs |= {"1/0/0/0": b"first\n", "1/0/0/1": b"second\n"}
    script.silent = "logs/1/0/0/1"
    with pytest.raises(UnreachableError):
        told.extend(line for _, line in tail.read(client, "j-7f3k2m9q"))
    script.silent = None
    told.extend(line for _, line in tail.read(client, "j-7f3k2m9q"))
    assert told == ["first", "second"]


def test_json_is_one_event_a_line_and_nothing_else(client: Client, screen: MakeScreen, job: MakeJob) -> None:
    page = screen(as_json=True)
    Follower(client, page, job()).run()
    lines = [json.loads(line) for line in output(page).splitlines()]
    assert [line["kind"] for line in lines][-1] == "state"
    assert len(lines) == 22


def test_a_service_that_comes_back_is_followed_on(
    client: Client, screen: MakeScreen, job: MakeJob, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    script.failures = 3
    assert Follower(client, screen(), job()).run().state == "succeeded"


def test_a_service_that_stays_away_ends_the_looking_with_its_own_code(
    client: Client, screen: MakeScreen, job: MakeJob, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", 0.05)
    script.failures = 1_000_000
    with pytest.raises(CliError) as caught:
        Follower(client, screen(), job()).run()
    assert caught.value.code is ExitCode.UNREACHABLE
    assert "goes on without it" in caught.value.message
    assert "shardyard logs quickstart --follow" in caught.value.remedy


@pytest.mark.parametrize(
    ("state", "code"),
    [("succeeded", ExitCode.DONE), ("failed", ExitCode.FAILED), ("cancelled", ExitCode.CANCELLED)],
)
def test_each_end_has_its_own_exit_code(job: MakeJob, state: str, code: ExitCode) -> None:
    assert result_code(job(state=state)) is code
