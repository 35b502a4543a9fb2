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
from orchestrator.settings import PREFIX
from workers.contract.base import Message

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.1
HOME: Final = f"{PREFIX}HOME"
RAY_ADDRESS: Final = f"{PREFIX}RAY_ADDRESS"
RAY_AUTH_TOKEN_PATH: Final = f"{PREFIX}RAY_AUTH_TOKEN_PATH"
ALLOWED_ROOTS: Final = f"{PREFIX}ALLOWED_ROOTS"


class LocalService(Message):
    """The service that we started. `settings` are what it was told, SHARDYARD_* by their names."""

    service: Owned
    url: str
    log: Path
    settings: Mapping[str, str] = {}


def start_service(home: Path, *, environ: Mapping[str, str], cluster: LocalCluster | None) -> LocalService:
    """Start `shardyard serve` for `home` and return when it answers; return the one that already runs as wanted.

    `environ` may hold SHARDYARD_* settings; `cluster` fills in Ray's address. One that was told otherwise, as of a Ray
    that is gone, is ended first: jobs train on meanwhile, and the next one adopts them. Raises LocalClusterError.
    """
    with lock(home):
        left = read_service(home)
        settings = wanted_settings(home, environ, cluster=cluster, left=left)
        if left is not None:
            if processes.is_running(left.service) and left.settings == settings:
                return left
            _end_service(home, left)
        log = home / "logs" / "service.log"
        owned = processes.spawn(
            [str(Path(sys.executable).with_name("shardyard")), "serve"],
            mark=processes.new_mark(),
            environment={**_foreign(environ), **settings},
            log=log,
            directory=home,
        )
        service = LocalService(service=owned, url="", log=log, settings=settings)
        try:
            write_private(_service_file(home), service.to_json())
            service = service.model_copy(update={"url": _wait_for_service(home, service)})
            write_private(_service_file(home), service.to_json())
            return service
        except BaseException:
            _end_service(home, service)
            raise


def wanted_settings(
    home: Path, environ: Mapping[str, str], *, cluster: LocalCluster | None, left: LocalService | None
) -> dict[str, str]:
    """Return what the service of `home` is told. What jobs were once allowed to use stays allowed until `down`."""
    settings = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    settings[HOME] = str(home)
    if cluster is not None:
        settings[RAY_ADDRESS] = cluster.url
        settings[RAY_AUTH_TOKEN_PATH] = str(cluster.token_path)
    roots = [settings.get(ALLOWED_ROOTS, ""), left.settings.get(ALLOWED_ROOTS, "") if left else ""]
    every = dict.fromkeys(root for one in roots for root in one.split(",") if root)
    if every:
        settings[ALLOWED_ROOTS] = ",".join(sorted(every))
    return settings


def _foreign(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


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
