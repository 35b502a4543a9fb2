"""Everything of the Ray edge that needs no Ray: what is asked of it, and what its silence means."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cluster import RayUnavailable
from orchestrator.local_cluster import ray_command, ray_environment
from orchestrator.ray_backend import RayJobsBackend


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """Accept one connection at a time and send `answer`, or stay silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for connection in held:
            connection.close()


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    "answer",
    [
        None,  # a stopped process: the port is open and nobody answers (SIGSTOP)
        http("500 Internal Server Error", "Traceback (most recent call last)\nRuntimeError: GCS is away"),
        http("200 OK", "<html>a proxy's login page</html>"),
        http("200 OK", "[]"),
        http("200 OK", '{"result": false, "msg": "no", "data": null}'),
        b"",
    ],
)
def test_whatever_is_wrong_with_ray_it_is_unavailable_and_never_a_word_about_a_job(
    answer: bytes | None,
) -> None:
    with listener(answer) as address:
        backend = RayJobsBackend(address, token_path=None, call_seconds=0.3)
        for call in (backend.capacity, lambda: backend.leftovers("j-0")):
            with pytest.raises(RayUnavailable):
                call()
        backend.close()


def test_what_ray_says_of_a_driver_is_kept_before_the_long_log_that_it_quotes() -> None:
    said = (
        "Job entrypoint command failed with exit code -9, last available logs (truncated to 20,000 chars):\n"
    )
    told = {"status": "FAILED", "message": said + "step\n" * 4000 + "the last line"}
    with listener(http("200 OK", json.dumps(told))) as address:
        backend = RayJobsBackend(address, token_path=None)
        message = backend.status("j-0").message
        backend.close()
    assert message.startswith(said)
    assert message.endswith("the last line")
    assert len(message) < 5000


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    backend = RayJobsBackend(f"http://127.0.0.1:{port}", token_path=None)
    with pytest.raises(RayUnavailable, match=f"does not answer at http://127.0.0.1:{port}"):
        backend.status("j-0")
    backend.close()


def test_a_token_file_that_is_gone_is_unavailable_and_named(tmp_path: Path) -> None:
    backend = RayJobsBackend("http://127.0.0.1:1", token_path=tmp_path / "token")
    with pytest.raises(RayUnavailable, match="token"):
        backend.capacity()
    backend.close()


def test_the_cluster_inherits_neither_our_secrets_nor_the_way_to_another_cluster(tmp_path: Path) -> None:
    made = ray_environment(
        {"HOME": "/h", "PATH": "/bin", "SHARDYARD_TOKEN": "s", "RAY_ADDRESS": "other:1"}, token_path=tmp_path
    )
    assert made["HOME"] == "/h"
    assert made["PATH"].endswith(":/bin")
    assert made["PATH"].startswith(str(Path(sys.executable).parent))
    assert not {"SHARDYARD_TOKEN", "RAY_ADDRESS"} & set(made)
    assert (made["RAY_AUTH_MODE"], made["RAY_AUTH_TOKEN_PATH"]) == ("token", str(tmp_path))


def test_the_head_listens_on_loopback_only_where_ray_lets_us_choose(tmp_path: Path) -> None:
    command = ray_command(dashboard_port=1, client_port=2, temp_dir=tmp_path, num_cpus=3, num_gpus=None)
    assert command[command.index("--node-ip-address") + 1] == "127.0.0.2"
    assert command[command.index("--dashboard-host") + 1] == "127.0.0.1"
    assert command[command.index("--num-cpus") + 1] == "3"
    assert "--num-gpus" not in command
