"""Ending what we started, whatever became of it, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from orchestrator import processes
from orchestrator.processes import Owned

CHILD = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def start(code: str, directory: Path) -> tuple[Owned, str]:
    """Start Python code and wait for its first line."""
    log = directory / "log"
    owned = processes.spawn(
        [sys.executable, "-c", code],
        mark=processes.new_mark(),
        environment=dict(os.environ),
        log=log,
        directory=directory,
    )
    deadline = time.monotonic() + 30
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return owned, log.read_text().strip()


def is_live(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_process_and_a_child_in_another_session_end_together(tmp_path: Path) -> None:
    owned, child = start(PARENT, tmp_path)
    assert processes.is_running(owned)
    assert {process.pid for process in processes.family(owned.mark)} == {owned.pid, int(child)}
    ended = processes.end(owned, grace_seconds=5)
    assert (ended.num_found, ended.survivors) == (2, ())
    assert not is_live(owned.pid)
    assert not is_live(int(child))


def test_a_child_whose_parent_was_killed_is_still_found(tmp_path: Path) -> None:
    owned, child = start(PARENT, tmp_path)
    os.kill(owned.pid, signal.SIGKILL)
    psutil.Process(owned.pid).wait(30)
    assert not processes.is_running(owned)
    assert is_live(int(child))
    assert processes.end(owned, grace_seconds=5).num_found == 1
    assert not is_live(int(child))


def test_a_process_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    owned, _ = start(DEAF, tmp_path)
    assert processes.end(owned, grace_seconds=0.2).survivors == ()
    assert not is_live(owned.pid)


def test_a_child_that_hid_its_environment_and_lost_its_parent_is_found_by_its_session(tmp_path: Path) -> None:
    hidden = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], env={{}})
print(child.pid, flush=True)
time.sleep(600)
"""
    owned, child = start(hidden, tmp_path)
    os.kill(owned.pid, signal.SIGKILL)
    psutil.Process(owned.pid).wait(30)
    assert processes.family(owned.mark) == []
    assert processes.end(owned, grace_seconds=5).num_found == 1
    assert not is_live(int(child))


def test_ending_twice_finds_nothing_the_second_time(tmp_path: Path) -> None:
    owned, _ = start(DEAF, tmp_path)
    processes.end(owned, grace_seconds=0)
    assert processes.end(owned, grace_seconds=0).num_found == 0


def test_a_process_runs_from_the_moment_it_is_started(tmp_path: Path) -> None:
    for _ in range(200):  # the kernel shows no environment for an instant
        owned = processes.spawn(
            ["/bin/sleep", "600"],
            mark=processes.new_mark(),
            environment=dict(os.environ),
            log=tmp_path / "log",
            directory=tmp_path,
        )
        runs = processes.is_running(owned)
        os.kill(owned.pid, signal.SIGKILL)
        os.waitpid(owned.pid, 0)
        assert runs


def test_a_stranger_with_a_recycled_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD]) as stranger:
        recycled = Owned(pid=stranger.pid, mark=processes.new_mark())
        assert not processes.is_running(recycled)
        assert processes.end(recycled, grace_seconds=0).num_found == 0
        assert stranger.poll() is None
        stranger.kill()


def test_the_log_is_private_and_the_session_is_not_ours(tmp_path: Path) -> None:
    owned, _ = start(DEAF, tmp_path)
    try:
        assert (tmp_path / "log").stat().st_mode & 0o077 == 0
        assert os.getsid(owned.pid) == owned.pid  # a terminal's Ctrl-C does not reach it
    finally:
        processes.end(owned, grace_seconds=0)
