"""The service as a process of its own on this machine: started for one state directory, ended by pid."""

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
from pydantic import ValidationError

from orchestrator import processes
from orchestrator.local_cluster import LocalCluster
from orchestrator.local_state import LocalClusterError, lock, tail, write_private
from orchestrator.processes import Ended, Owned
from workers.contract.base import Message

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.1


class LocalService(Message):
    """The service that we started."""

    service: Owned
    url: str
    log: Path


def start_service(home: Path, *, environ: Mapping[str, str], cluster: LocalCluster | None) -> LocalService:
    """Start `shardyard serve` for `home` and return when it answers; return the one that already runs.

    `environ` may hold SHARDYARD_* settings; `cluster` fills in Ray's address. Raises LocalClusterError.
    """
    with lock(home):
        left = read_service(home)
        if left is not None and processes.is_running(left.service):
            return left
        log = home / "logs" / "service.log"
        environment = {**environ, "SHARDYARD_HOME": str(home)}
        if cluster is not None:
            environment["SHARDYARD_RAY_ADDRESS"] = cluster.url
            environment["SHARDYARD_RAY_AUTH_TOKEN_PATH"] = str(cluster.token_path)
        owned = processes.spawn(
            [str(Path(sys.executable).with_name("shardyard")), "serve"],
            mark=processes.new_mark(),
            environment=environment,
            log=log,
            directory=home,
        )
        service = LocalService(service=owned, url="", log=log)
        try:
            write_private(_service_file(home), service.to_json())
            service = service.model_copy(update={"url": _wait_for_service(home, service)})
            write_private(_service_file(home), service.to_json())
            return service
        except BaseException:
            _end_service(home, service)
            raise


def read_service(home: Path) -> LocalService | None:
    """Return what `start_service` left for `home`, whether or not it still runs."""
    try:
        return LocalService.from_json(_service_file(home).read_bytes())
    except (OSError, ValidationError):
        return None


def stop_service(home: Path) -> Ended:
    """End the service of `home`, if one was started here. Repeatable; raises LocalClusterError."""
    if not home.exists():
        return Ended(num_found=0)
    with lock(home):
        service = read_service(home)
        return Ended(num_found=0) if service is None else _end_service(home, service)


def _wait_for_service(home: Path, service: LocalService) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if not processes.is_running(service.service):
            raise LocalClusterError(f"the service ended while it started; {tail(service.log)}")
        with contextlib.suppress(OSError, ValueError, KeyError, httpx.HTTPError):
            announced = json.loads(
                (home / "service.json").read_bytes()
            )  # the service's own word, once it listens
            url = str(announced["url"])
            is_ours = announced["pid"] == service.service.pid
            if is_ours and httpx.get(f"{url}/healthz", timeout=5.0, trust_env=False).is_success:
                return url
        time.sleep(_POLL_SECONDS)
    raise LocalClusterError(f"the service did not answer within {START_SECONDS:.0f} s; {tail(service.log)}")


def _end_service(home: Path, service: LocalService) -> Ended:
    ended = processes.end(service.service, grace_seconds=STOP_SECONDS)
    if ended.survivors:
        raise LocalClusterError(f"processes {list(ended.survivors)} of the service would not end")
    _service_file(home).unlink(missing_ok=True)
    return ended


def _service_file(home: Path) -> Path:
    return home / "local_service.json"
