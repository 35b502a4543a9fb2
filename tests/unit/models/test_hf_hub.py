"""Models by name: fetched from a hub once per node, whoever asks. The hub is a small server on loopback."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

pytest.importorskip("transformers")

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
TOKEN: Final = "hf_not_a_real_one"
ASK: Final = """
import sys
from workers.contract.config import HfModel
from workers.models.hf_library import find_files
print(find_files(HfModel.model_validate_json(sys.argv[1])))
"""


class Hub:
    """Serves one repository, `org/small`, to whoever brings the token, and counts what is fetched."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.fetched: Counter[str] = Counter()
        self.strangers = 0

    def listing(self) -> list[dict[str, object]]:
        """What the hub's API says of the files."""
        return [
            {"type": "file", "path": name, "size": len(content), "oid": sha1(content).hexdigest()}
            for name, content in self.files.items()
        ]


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            name = self.path.partition(f"/resolve/{COMMIT}/")[2]
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                hub.strangers += 1
                self._send(401, b"", {"X-Error-Code": "GatedRepo"}, with_body)
            elif self.path.startswith("/api/models/org/small"):
                is_listing = "/tree/" in self.path
                described = hub.listing() if is_listing else {"id": "org/small", "sha": COMMIT}
                self._send(200, json.dumps(described).encode(), {}, with_body)
            elif name in hub.files:
                content = hub.files[name]
                hub.fetched[name] += with_body
                named = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
                self._send(200, content, named, with_body)
            else:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)

        def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def hub() -> Hub:
    wanted = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{ }"}
    return Hub({**wanted, "pytorch_model.bin": b"nobody asks for a pickle", "README.md": b"nor for this"})


def ask(url: str, home: Path, model: dict[str, str], **environment: str) -> "subprocess.Popen[str]":
    settings = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-W", "error::FutureWarning", "-c", ASK, json.dumps({"kind": "hf", **model})],
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ranks_of_a_node_fetch_a_model_once_with_the_nodes_token(hub: Hub, tmp_path: Path) -> None:
    """Two at once, and one later; the token is read from the variable that the job names."""
    model = {"path": "org/small", "token_env": "TEAM_TOKEN"}
    with serving(hub) as url:
        together = [ask(url, tmp_path / "home", model, TEAM_TOKEN=TOKEN) for _ in range(2)]
        said = [process.communicate(timeout=120) for process in together]
        later = ask(url, tmp_path / "home", model, TEAM_TOKEN=TOKEN).communicate(timeout=120)
    places = {out for out, _ in (*said, later)}
    assert len(places) == 1, said
    assert "" not in places, said
    directory = Path(places.pop().strip())
    wanted = {name for name in hub.files if name.endswith((".json", ".safetensors"))}
    assert {path.name for path in directory.iterdir()} == wanted
    assert hub.fetched == dict.fromkeys(wanted, 1)


def test_a_model_that_the_hub_refuses_is_named(hub: Hub, tmp_path: Path) -> None:
    with serving(hub) as url:
        _, said = ask(url, tmp_path / "home", {"path": "org/small"}).communicate(timeout=120)
    assert "ConfigError: model.path: org/small cannot be fetched" in said
    assert hub.strangers > 0
    assert not hub.fetched
