"""What holds for all tests."""

import secrets
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import settings

# A machine may be busy: how long an example takes is no property of the code.
settings.register_profile("shardyard", deadline=None)
settings.load_profile("shardyard")


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """An S3 on loopback with an empty bucket `yard`: what a client's environment must hold to reach it."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    httpx.put(f"{environment['AWS_ENDPOINT_URL']}/yard", trust_env=False).raise_for_status()
    yield environment
    server.stop()


@pytest.fixture
def s3_url(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of its own in that bucket; this process's environment leads to it."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://yard/{secrets.token_hex(4)}"
