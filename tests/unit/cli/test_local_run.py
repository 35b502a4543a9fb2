"""`submit --local`, drawn from the lines of a process; here a program that prints recorded ones."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orchestrator.api.views import EventView
from orchestrator.cli import worker_process
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.job_file import JobFile
from orchestrator.cli.local_run import run_local
from orchestrator.cli.screen import Screen
from orchestrator.cli.worker_process import WorkerStream, run_worker
from orchestrator.spec.model import JobSpec
from workers.contract.events import JobResult, Sample

MakeScreen = Callable[..., Screen]
Install = Callable[[str], None]
BOUND_SECONDS = 30.0


@pytest.fixture
def spec() -> JobSpec:
    text = "model: {kind: llama, size: nano}\ndata: {kind: text, path: python-stdlib}\n"
    return JobFile(text=text, source="job.yaml", overrides=()).parse()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a shell script in the place of `shardyard-worker`."""

    def put(script: str) -> None:
        program = tmp_path / "shardyard-worker"
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(worker_process, "worker_program", lambda: str(program))

    return put


@pytest.fixture
def recorded(
    tmp_path: Path, events: list[EventView], sample: Callable[..., Sample], result: JobResult
) -> Path:
    """Lines as a run prints them, with one that some library printed among them."""
    told: list[tuple[str, dict[str, object]]] = [("event", event.model_dump(mode="json")) for event in events]
    told.insert(9, ("sample", sample(0).model_dump(mode="json")))
    outcome = {"phase": "finished", "reason": "finished at step 150", "run_dir": "/runs/x"}
    told.append(("outcome", {**outcome, "result": result.model_dump(mode="json")}))
    lines = [json.dumps({"type": kind, "data": data}) for kind, data in told]
    lines.insert(3, "a library says hello")
    path = tmp_path / "lines"
    path.write_text("\n".join(lines) + "\n")
    return path


def output(screen: Screen) -> tuple[str, str]:
    return screen.out.file.getvalue(), screen.err.file.getvalue()  # type: ignore[attr-defined]  # StringIO


def test_a_run_is_drawn_to_its_result(
    screen: MakeScreen, spec: JobSpec, install: Install, recorded: Path
) -> None:
    install(f"cat {recorded}")
    page = screen()
    assert run_local(page, spec, num_workers=2) is ExitCode.DONE
    out, err = output(page)
    assert "restart 1 of 5" in out
    assert "each exactly once; 14 steps replayed" in out
    assert err == "a library says hello\n"


def test_a_run_that_failed_says_why_and_ends_with_1(
    screen: MakeScreen, spec: JobSpec, install: Install
) -> None:
    outcome = {"phase": "failed", "reason": "user_code is not retried", "run_dir": "/runs/x", "result": None}
    install(f"echo '{json.dumps({'type': 'outcome', 'data': outcome})}'; exit 1")
    page = screen()
    assert run_local(page, spec, num_workers=1) is ExitCode.FAILED
    assert "user_code is not retried" in output(page)[0]


def test_json_lines_pass_through(screen: MakeScreen, spec: JobSpec, install: Install, recorded: Path) -> None:
    install(f"cat {recorded}")
    page = screen(as_json=True)
    run_local(page, spec, num_workers=2)
    kinds = [json.loads(line)["type"] for line in output(page)[0].splitlines()]
    assert (kinds.count("sample"), kinds[-1]) == (1, "outcome")


def test_the_worker_gets_the_training_part_and_the_number_of_workers(
    screen: MakeScreen, spec: JobSpec, install: Install, tmp_path: Path, recorded: Path
) -> None:
    install(f'echo "$@" > {tmp_path}/arguments; cp "${{@: -1}}" {tmp_path}/config; cat {recorded}')
    run_local(screen(), spec, num_workers=2)
    assert "local --workers 2" in (tmp_path / "arguments").read_text()
    assert "queue" not in json.loads((tmp_path / "config").read_text())


def test_a_process_that_dies_is_told_with_its_last_words(
    screen: MakeScreen, spec: JobSpec, install: Install
) -> None:
    install("echo 'no space left' >&2; exit 9")
    with pytest.raises(CliError, match="exit code 9") as caught:
        run_local(screen(), spec, num_workers=1)
    assert "no space left" in caught.value.message


def test_a_process_that_is_stopped_takes_its_children_with_it(install: Install, tmp_path: Path) -> None:
    install("trap '' TERM; sleep 600 & echo $!; wait; wait")
    stream = WorkerStream([], stderr_file=tmp_path / "stderr")
    child = psutil.Process(int(str(next(stream.lines()))))
    stream.stop(grace_seconds=0.2)
    psutil.wait_procs([child], timeout=BOUND_SECONDS)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_worker_that_fails_is_told_by_its_last_line(install: Install) -> None:
    install("echo 'Traceback ...' >&2; echo 'error: no checkpoint is published' >&2; exit 1")
    with pytest.raises(CliError, match="shardyard-worker export: no checkpoint is published"):
        run_worker(["export", "x"])


def test_a_directory_of_the_user_does_not_take_our_place(install: Install) -> None:
    install("printenv PYTHONSAFEPATH")
    assert run_worker(["any"]).strip() == "1"
    assert "PYTHONSAFEPATH" not in os.environ
