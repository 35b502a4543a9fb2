"""The service as a process: how it starts, is found, refuses a second one, and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.client import Client
from orchestrator.settings import find_service

PROGRAM = """\
import os, sys
from orchestrator.app import serve
from orchestrator.settings import SettingsError, read_settings
try:
    serve(read_settings(os.environ))
except SettingsError as error:
    sys.exit(f"refused: {error}")
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a service of this test's state directory; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(**settings: str) -> subprocess.Popen[str]:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("SHARDYARD_")}
        environ |= {"SHARDYARD_HOME": str(tmp_path / "home"), "SHARDYARD_PORT": "0"} | settings
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environ, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=20)


def said_listening(process: subprocess.Popen[str]) -> str:
    """Wait for the line that says where it listens; what it said until then where it ended instead."""
    assert process.stderr is not None
    guard = threading.Timer(30, process.kill)
    guard.start()
    said = ""
    for line in process.stderr:
        said += line
        if "listening on" in line:
            break
    guard.cancel()
    return said


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_service_is_found_by_its_state_directory_and_ends_without_a_trace(
    start: Start, tmp_path: Path, signum: signal.Signals
) -> None:
    process = start()
    assert "listening on http://127.0.0.1:" in said_listening(process)
    environ = {"SHARDYARD_HOME": str(tmp_path / "home")}
    found = find_service(environ)
    assert found is not None
    with Client(found.url, found.token) as client:
        client.health()
        assert client.jobs().jobs == []
        assert json.loads((tmp_path / "home" / "service.json").read_text())["pid"] == process.pid
    process.send_signal(signum)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert find_service(environ) is None


def test_a_second_service_of_one_state_directory_is_refused(start: Start) -> None:
    said_listening(start())
    second = start()
    assert "another service runs with SHARDYARD_HOME" in said_listening(second)
    assert second.wait(timeout=20) != 0


def test_a_killed_service_leaves_its_state_directory_usable(start: Start) -> None:
    first = start()
    said_listening(first)
    first.kill()
    first.wait(timeout=20)
    assert "listening on" in said_listening(start())


def test_a_port_that_is_taken_is_named_with_the_remedy(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = said_listening(start(SHARDYARD_PORT=str(port)))
    assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert "SHARDYARD_PORT" in said


def test_a_wide_bind_without_a_token_never_listens(start: Start) -> None:
    process = start(SHARDYARD_HOST="0.0.0.0", SHARDYARD_ADVERTISE_URL="http://yard:8321")
    assert "SHARDYARD_TOKEN_FILE" in said_listening(process)
    assert process.wait(timeout=20) != 0
