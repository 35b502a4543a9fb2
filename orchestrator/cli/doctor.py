"""The doctor's hands: measure this machine and the running yard, and let `diagnosis` conclude."""

import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

from orchestrator.cli import diagnosis
from orchestrator.cli.diagnosis import Finding
from orchestrator.cli.exit_code import CliError
from orchestrator.cli.worker_process import worker_program
from orchestrator.client import Client, ClientError
from orchestrator.settings import Settings, SettingsError, find_service, read_settings

TORCH_SECONDS: Final = 120.0  # the first import on a cold disk is slow
ANSWER_SECONDS: Final = 5.0
ASK_TORCH: Final = (
    "import json, torch; print(json.dumps({'version': torch.__version__, 'gpus': torch.cuda.device_count()}))"
)
CGROUP: Final = Path("/sys/fs/cgroup")


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield one finding after the other, the quick ones first within each part: machine, package, yard."""
    yield diagnosis.python(sys.version_info[:3], sys.executable)
    yield diagnosis.cpus(os.cpu_count() or 1, cpu_quota(_read(CGROUP / "cpu.max")))
    limit, used = _read(CGROUP / "memory.max"), _read(CGROUP / "memory.current")
    yield diagnosis.memory(
        psutil.virtual_memory().available,
        int(limit) if limit.isdigit() else None,
        int(used) if used.isdigit() else 0,
    )
    yield diagnosis.shared_memory(_size_of(Path("/dev/shm")))  # noqa: S108 -- looked at, never written
    yield diagnosis.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield diagnosis.loopback(_bind_error("127.0.0.2", 0))
    yield diagnosis.clock(datetime.now(UTC))
    yield diagnosis.ray_package(_version("ray"))
    yield diagnosis.torch_package(_ask_torch(environ))
    yield diagnosis.worker_program(_worker_program())
    yield diagnosis.deepspeed_ops(_ask_ops(environ))
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        yield Finding(subject="Settings", verdict="fail", found=str(error))
        return
    yield from _yard(settings, environ)


def _yard(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    storage = _existing(settings.storage_dir)
    yield diagnosis.disk(
        str(settings.storage_dir),
        shutil.disk_usage(storage).free,
        is_writable=os.access(storage, os.W_OK | os.X_OK),
    )
    own = settings.home_dir / "token"
    yield diagnosis.token(str(own), stat.S_IMODE(own.stat().st_mode) if own.exists() else None)
    try:
        endpoint = find_service(environ)
    except SettingsError as error:
        yield Finding(subject="Settings", verdict="fail", found=str(error))
        return
    own_version = _version("shardyard") or "unknown"
    if endpoint is None:
        if settings.port:
            yield diagnosis.port(settings.port, is_free=_bind_error(settings.host, settings.port) is None)
        yield diagnosis.orchestrator(None, version=None, own_version=own_version)
        return
    with Client(endpoint.url, endpoint.token, timeout_seconds=ANSWER_SECONDS) as client:
        yield from _service(client, own_version)


def _service(client: Client, own_version: str) -> Iterator[Finding]:
    try:
        health = client.health()
    except ClientError as error:
        yield diagnosis.orchestrator(client.url, version=None, own_version=own_version, error=str(error))
        return
    yield diagnosis.orchestrator(client.url, version=health.version, own_version=own_version)
    try:
        yield diagnosis.cluster(client.cluster(), now=datetime.now(UTC))
    except ClientError as error:
        remedy = "The token comes from SHARDYARD_TOKEN, SHARDYARD_TOKEN_FILE or $SHARDYARD_HOME/token."
        yield Finding(subject="Ray cluster", verdict="fail", found=str(error), remedy=remedy)


def cpu_quota(cpu_max: str) -> float | None:
    """CPUs that `cpu.max` of cgroup v2 allows; None where it sets no limit."""
    quota, _, period = cpu_max.partition(" ")
    if not quota.isdigit() or not period.strip().isdigit():
        return None
    return int(quota) / int(period)


def _ask_torch(environ: Mapping[str, str]) -> dict[str, Any] | str:
    return _ask([sys.executable, "-c", ASK_TORCH], environ)


def _ask_ops(environ: Mapping[str, str]) -> dict[str, Any] | str:
    worker = _worker_program()
    return "shardyard-worker is missing" if worker is None else _ask([worker, "ops", "check"], environ)


def _ask(command: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any] | str:
    """Let a process of its own import torch: it takes seconds, and may crash the one that does it.

    Returns the object that it prints, or the last line of what it died with.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TORCH_SECONDS,
            env={**environ, "PYTHONSAFEPATH": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"import takes more than {TORCH_SECONDS:.0f} s"
    if not done.stdout.strip():
        return (done.stderr.strip().splitlines() or [f"import ended with exit code {done.returncode}"])[-1]
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def _worker_program() -> str | None:
    try:
        return worker_program()
    except CliError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    """Return the nearest directory that is there already: a first start makes the rest."""
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def _size_of(path: Path) -> int | None:
    return shutil.disk_usage(path).total if path.is_dir() else None


def _bind_error(host: str, number: int) -> str | None:
    try:
        with socket.create_server((host, number)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
