"""What happens when an agent, a driver or a whole node goes, and how a run is stopped: nothing is ever left running."""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from ray_runs import Run, descendants_of_agent, driver_environment, is_alive, misbehaving, wait_for

from orchestrator.local_cluster import start_cluster, stop_cluster
from workers.contract.report import Desired, Report

pytestmark = pytest.mark.ray

LONG = {"steps": 5000, "seconds": 0.05, "every_steps": 5}


def everything(run: Run, attempt: int = 1) -> list[int]:
    """Ranks, stores, forkservers and wardens of an attempt, and its agents."""
    agents = run.agent_pids(attempt).values()
    found = [*agents, *(pid for agent in agents for pid in descendants_of_agent(agent))]
    assert len(found) >= 2 * 4 + 1, "agent, forkserver, warden and rank twice, and a store"
    return found


def all_gone(pids: list[int], seconds: float = 20) -> None:
    wait_for(lambda: not any(is_alive(pid) for pid in pids), f"all of {pids} are gone", seconds)


def test_a_killed_agent_costs_an_attempt_and_leaves_nothing(run: Run, tmp_path: Path):
    note = tmp_path / "spawned"
    run.start(misbehaving(do="spawns", step=1, rank=1, once=str(tmp_path / "once"), note=str(note), **LONG))
    run.wait_event("checkpoint_published")
    old = everything(run) + [int(pid) for pid in note.read_text().split()]
    os.kill(run.agent_pids()[1], signal.SIGKILL)
    run.wait_event("first_step", number=2)
    all_gone(old)
    assert run.events("attempt_failed")[0]["data"]["verdict"]["failure_class"] == "agent_lost"
    second = run.events("round_started")[1]
    assert (second["attempt"], second["round"]) == (1, 0)
    assert second["data"]["resume_from"] is not None
    assert run.driver is not None
    run.driver.send_signal(signal.SIGTERM)
    assert run.finish() == 0, run.story()
    assert run.events()[-1]["kind"] == "stopped"
    all_gone([*everything_of(run, 2)])


def everything_of(run: Run, attempt: int) -> list[int]:
    return [
        pid for agent in run.agent_pids(attempt).values() for pid in (agent, *descendants_of_agent(agent))
    ]


def test_a_killed_driver_leaves_nothing_and_the_next_generation_goes_on(run: Run):
    run.start(misbehaving(**LONG))
    run.wait_event("checkpoint_published")
    old = everything(run)
    assert run.driver is not None
    run.driver.kill()
    run.driver.wait()
    all_gone(old)
    newest = run.events("checkpoint_published")[-1]
    run.start(misbehaving(**{**LONG, "steps": newest["step"] + 40}))
    assert run.wait_event("round_started")["step"] >= newest["step"]
    assert run.finish() == 0, run.story()
    assert run.events("finished")[0]["data"]["samples_missing"] == 0


def test_a_driver_that_stands_still_loses_its_ranks_within_a_lease(run: Run):
    run.start(misbehaving(**LONG), lease_seconds=3.0)
    run.wait_event("first_step")
    ranks = list(run.rank_pids().values())
    assert run.driver is not None
    run.driver.send_signal(signal.SIGSTOP)
    all_gone(ranks)
    run.driver.send_signal(signal.SIGCONT)


def test_a_killed_raylet_leaves_nothing(tmp_path: Path):
    home = Path(tempfile.mkdtemp(prefix="sy-r-"))
    cluster = start_cluster(home, environ=os.environ, num_cpus=2)
    run = Run(tmp_path / "run", driver_environment(cluster))
    try:
        run.start(misbehaving(**LONG))
        run.wait_event("first_step")
        old = everything(run)
        raylets = [
            p for p in psutil.Process(cluster.ray.pid).children(recursive=True) if p.name() == "raylet"
        ]
        assert len(raylets) == 1
        raylets[0].kill()
        all_gone(old)
    finally:
        run.end()
        stop_cluster(home)
        shutil.rmtree(home)


def test_workers_that_do_not_fit_are_not_placed(run: Run):
    config = misbehaving()
    config["scaling"] = {"num_workers": 2, "cpus_per_worker": 100}
    run.start(config, placement_seconds=5.0)
    assert run.finish() == 0, run.story()
    assert "no room for 2 workers x 100 CPU" in run.events("attempt_failed")[0]["message"]
    assert run.events()[-1]["message"].startswith("gives its grant back")


def test_a_node_with_another_version_is_refused_by_name(run: Run):
    run.start(misbehaving(), version="9.9.9")
    assert run.finish() == 0, run.story()
    assert "the service runs 9.9.9" in run.events("failed")[0]["message"]
    assert run.events("round_started") == []


class Orchestrator:
    """Takes reports over HTTP as the service does, and may refuse them or ask for a stop."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.tokens: set[str | None] = set()
        self.is_away = False
        self.action = "run"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.is_away:
                    self.send_error(503)
                    return
                outer.tokens.add(self.headers["Authorization"])
                report = Report.from_json(body)
                outer.reports.append(report)
                answer = Desired(
                    generation=report.generation,
                    action=outer.action,
                    acknowledged=outer.highest,
                    reason="asked",
                ).to_json()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def highest(self) -> int:
        return max((event.sequence for report in self.reports for event in report.events), default=-1)


@pytest.fixture
def orchestrator() -> Iterator[Orchestrator]:
    made = Orchestrator()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def test_the_orchestrator_hears_everything_though_it_was_away_and_its_stop_is_obeyed(
    run: Run, orchestrator: Orchestrator
):
    run.environment["SHARDYARD_REPORT_TOKEN"] = "secret-of-this-generation"
    run.start(misbehaving(**LONG), report_url=orchestrator.url)
    wait_for(lambda: any(r.phase == "running" for r in orchestrator.reports), "a running report")
    orchestrator.is_away = True
    os.kill(run.rank_pids()[0], signal.SIGKILL)
    run.wait_event("first_step", number=2)
    orchestrator.is_away = False
    heard_at = len(orchestrator.reports)
    wait_for(lambda: len(orchestrator.reports) > heard_at, "reports go on")
    ranks = list(run.rank_pids(2).values())
    orchestrator.action = "stop"
    assert run.finish() == 0, run.story()
    all_gone(ranks)

    assert orchestrator.reports[-1].phase == "stopped"
    assert orchestrator.tokens == {"Bearer secret-of-this-generation"}
    heard = {event.sequence: event.kind for report in orchestrator.reports for event in report.events}
    assert sorted(heard) == [event["sequence"] for event in run.events()]
    assert any(report.samples for report in orchestrator.reports)
    assert orchestrator.reports[-1].counters.charged == 1
    for rank in range(2):
        assert "secret-of-this-generation" not in run.log(round_=1, rank=rank)
