"""A Ray cluster of one node on this machine: started for one state directory, ended without a trace.

Ray runs in a short temp dir of its own, with token authentication. What it serves over HTTP it serves on loopback; its
gRPC servers listen on every address, as Ray has it, and answer to the token only. Everything is ended by pid, so other
Ray clusters of the machine are left alone. Knows nothing of jobs.
"""

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
from pydantic import ValidationError

from orchestrator import processes
from orchestrator.local_state import LocalClusterError, lock, tail, write_private
from orchestrator.processes import Ended, Owned
from workers.contract.base import Message

NODE_ADDRESS: Final = "127.0.0.2"  # Ray rewrites 127.0.0.1 to the machine's own address, and joins then hang
DASHBOARD_ADDRESS: Final = "127.0.0.1"
OBJECT_STORE_BYTES: Final = 128 << 20  # nothing large passes through it
START_SECONDS: Final = 60.0
DASHBOARD_SECONDS: Final = 20.0  # once Ray is up; it answers earlier unless its port was taken
STOP_SECONDS: Final = 15.0
_START_TRIES: Final = 3  # a free port can be taken between our look and Ray's bind
_POLL_SECONDS: Final = 0.1
_MAX_TEMP_ROOT: Final = 30


class _DashboardLostError(LocalClusterError):
    """Ray came up without its dashboard, as it does when the port is taken."""


class LocalCluster(Message):
    """A Ray cluster that we started. `url` is the Jobs API; both it and `gcs_address` want the token.

    `num_cpus` and `num_gpus` are what it may give out; None: all that Ray finds.
    """

    ray: Owned
    num_cpus: int | None = None
    num_gpus: int | None = None
    url: str
    gcs_address: str  # what `ray.init(address=...)` takes
    token_path: Path
    temp_dir: Path
    log: Path


def start_cluster(
    home: Path,
    *,
    environ: Mapping[str, str],
    num_cpus: int | None = None,
    num_gpus: int | None = None,
) -> LocalCluster:
    """Start Ray for the state directory `home` and return when it takes jobs; return the one that already runs.

    None leaves a resource as it was in a cluster that died here, else to Ray's own detection. Takes about 4 s. Raises
    LocalClusterError; then, and at Ctrl-C, nothing of it is left running.
    """
    with lock(home):
        left = read_cluster(home)
        if left is not None:
            if processes.is_running(left.ray):
                return left
            num_cpus = left.num_cpus if num_cpus is None else num_cpus
            num_gpus = left.num_gpus if num_gpus is None else num_gpus
            _end_cluster(home, left)
        for attempt in range(1, _START_TRIES + 1):
            try:
                return _start_once(home, environ, num_cpus=num_cpus, num_gpus=num_gpus)
            except _DashboardLostError:
                if attempt == _START_TRIES:
                    raise
        raise AssertionError("the last try returns or raises")


def read_cluster(home: Path) -> LocalCluster | None:
    """Return what `start_cluster` left for `home`, whether or not it still runs."""
    try:
        return LocalCluster.from_json(_cluster_file(home).read_bytes())
    except (OSError, ValidationError):
        return None


def stop_cluster(home: Path) -> Ended:
    """End exactly the processes of the cluster of `home`, then remove its temp dir and token. Repeatable.

    Raises LocalClusterError if a process would not end.
    """
    if not home.exists():
        return Ended(num_found=0)
    with lock(home):
        cluster = read_cluster(home)
        return Ended(num_found=0) if cluster is None else _end_cluster(home, cluster)


def ray_environment(environ: Mapping[str, str], *, token_path: Path) -> dict[str, str]:
    """Derive Ray's environment: the caller's, less whatever points at another cluster or at our secrets.

    Everything that runs in the cluster inherits it, training code too.
    """
    own_programs = str(Path(sys.executable).parent)
    kept = {key: value for key, value in environ.items() if not key.startswith(("RAY_", "SHARDYARD_"))}
    return {
        **kept,
        "PATH": os.pathsep.join(filter(None, (own_programs, environ.get("PATH", os.defpath)))),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # nobody waits for this node: 30 s by default
        "DASHBOARD_METRIC_PORT": "-1",  # a fixed port on all interfaces otherwise
        "RAY_enable_metrics_collection": "false",  # else the agent serves them on all interfaces, without a token
    }


def ray_dir(temp_dir: Path) -> Path:
    """Where Ray's files lie: Ray opens its own directory to all users, so it gets one inside a private one."""
    return temp_dir / "r"


def ray_command(
    *, dashboard_port: int, client_port: int, temp_dir: Path, num_cpus: int | None, num_gpus: int | None
) -> list[str]:
    """Build the command that is the head node; it stays in the foreground and ends with its children."""
    given = {"--num-cpus": num_cpus, "--num-gpus": num_gpus}
    return [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", NODE_ADDRESS, "--port", "0"),
        *("--dashboard-host", DASHBOARD_ADDRESS, "--dashboard-port", str(dashboard_port)),
        *("--dashboard-agent-listen-port", "0", "--ray-client-server-port", str(client_port)),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--temp-dir", str(ray_dir(temp_dir)), "--object-store-memory", str(OBJECT_STORE_BYTES)),
        *("--disable-usage-stats", "--include-log-monitor", "false", "--log-style", "record"),
        "--no-monitor",  # the autoscaler's process: one node never scales
        *(word for flag, value in given.items() if value is not None for word in (flag, str(value))),
    ]


def _start_once(
    home: Path, environ: Mapping[str, str], *, num_cpus: int | None, num_gpus: int | None
) -> LocalCluster:
    log = home / "logs" / "ray.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    temp_dir = _short_temp_dir()
    dashboard_port, client_port = _free_ports(DASHBOARD_ADDRESS, 2)
    token_path = home / "ray_token"
    write_private(token_path, secrets.token_hex(32))
    mark = processes.new_mark()
    cluster = LocalCluster(
        ray=Owned(pid=0, mark=mark),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        url=f"http://{DASHBOARD_ADDRESS}:{dashboard_port}",
        gcs_address="",
        token_path=token_path,
        temp_dir=temp_dir,
        log=log,
    )
    write_private(_cluster_file(home), cluster.to_json())  # before the first process, so that `stop` finds it
    try:
        command = ray_command(
            dashboard_port=dashboard_port,
            client_port=client_port,
            temp_dir=temp_dir,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
        )
        ray = processes.spawn(
            command,
            mark=mark,
            environment=ray_environment(environ, token_path=token_path),
            log=log,
            directory=home,
        )
        cluster = cluster.model_copy(update={"ray": ray})
        write_private(_cluster_file(home), cluster.to_json())
        gcs_address = _wait_for_ray(cluster)
        cluster = cluster.model_copy(update={"gcs_address": gcs_address})
        write_private(_cluster_file(home), cluster.to_json())
        return cluster
    except BaseException:  # Ctrl-C too: nothing is left behind
        _end_cluster(home, cluster)
        raise


def _wait_for_ray(cluster: LocalCluster) -> str:
    """Wait until Ray takes jobs; return the address of its GCS. Raises LocalClusterError, _DashboardLostError."""
    address_file = ray_dir(cluster.temp_dir) / "ray_current_cluster"  # the last thing that `ray start` writes
    headers = {"Authorization": f"Bearer {cluster.token_path.read_text(encoding='utf-8')}"}
    dashboard_deadline = deadline = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=cluster.url, headers=headers, timeout=5.0, trust_env=False) as client:
        while time.monotonic() < deadline:
            if not processes.is_running(cluster.ray):
                raise LocalClusterError(f"Ray ended while it started; {tail(cluster.log)}")
            is_up = address_file.exists()
            if is_up and _takes_jobs(client, cluster):
                return address_file.read_text(encoding="utf-8").strip()
            if not is_up:
                dashboard_deadline = time.monotonic() + DASHBOARD_SECONDS
            elif time.monotonic() > dashboard_deadline:
                raise _DashboardLostError(f"Ray runs but its dashboard does not answer; {tail(cluster.log)}")
            time.sleep(_POLL_SECONDS)
    raise LocalClusterError(f"Ray did not start within {START_SECONDS:.0f} s; {tail(cluster.log)}")


def _takes_jobs(client: httpx.Client, cluster: LocalCluster) -> bool:
    """Whether the Jobs API answers to our token, for our session (not a stranger's on that port), with a live node."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        session = str(client.get("/api/version").raise_for_status().json()["session_name"])
        nodes = client.get("/api/v0/nodes").raise_for_status().json()["data"]["result"]["result"]
        is_ours = (ray_dir(cluster.temp_dir) / session).is_dir()
        return is_ours and any(node["state"] == "ALIVE" for node in nodes)
    return False


def _end_cluster(home: Path, cluster: LocalCluster) -> Ended:
    ended = processes.end(cluster.ray, grace_seconds=STOP_SECONDS)
    if ended.survivors:
        raise LocalClusterError(
            f"processes {list(ended.survivors)} of the Ray cluster would not end; `shardyard down` tries again"
        )
    shutil.rmtree(cluster.temp_dir, ignore_errors=True)
    cluster.token_path.unlink(missing_ok=True)
    _cluster_file(home).unlink(missing_ok=True)
    return ended


def _cluster_file(home: Path) -> Path:
    return home / "cluster.json"


def _short_temp_dir() -> Path:
    """Make a temp dir whose path is short: a socket path under it must fit into 107 bytes."""
    root = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="sy-", dir=root if len(root) <= _MAX_TEMP_ROOT else "/tmp"))  # noqa: S108 -- private: mkdtemp makes it 0700


def _free_ports(address: str, count: int) -> list[int]:
    """Return `count` different ports that nobody listens on at `address` right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((address, 0))
        return [int(one.getsockname()[1]) for one in sockets]
