"""Bring the yard up on this machine and down again: a Ray cluster of our own, and the orchestrator beside it."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.local_cluster import LocalCluster, read_cluster, start_cluster, stop_cluster
from orchestrator.local_service import LocalService, read_service, start_service, stop_service
from orchestrator.local_state import LocalClusterError
from orchestrator.processes import is_running

Tell = Callable[[str, str, float], None]  # what, where it answers, seconds that it took


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """What is up. `cluster` is None where the orchestrator uses a Ray that is not ours."""

    home: Path
    cluster: LocalCluster | None
    service: LocalService


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How many processes were ended."""

    service: int
    cluster: int


def bring_up(
    home: Path,
    *,
    environ: Mapping[str, str],
    num_cpus: int | None,
    num_gpus: int | None,
    with_ray: bool,
    tell: Tell,
    listens: tuple[str, int] | None = None,
) -> Yard:
    """Start what is not yet running of the yard of `home`; at any failure, what this call started is ended again.

    An orchestrator that was told otherwise is started anew. `listens` is where it will: taken by somebody else is told
    before Ray is started.
    """
    cluster_was_up = running_cluster(home) is not None
    if listens is not None and not is_up(home):
        _refuse_taken(*listens)
    with _told():
        began = time.monotonic()
        cluster = None
        if with_ray:
            cluster = start_cluster(home, environ=environ, num_cpus=num_cpus, num_gpus=num_gpus)
            tell("Ray cluster", cluster.url, time.monotonic() - began)
        try:
            began = time.monotonic()
            service = start_service(home, environ=environ, cluster=cluster)
        except BaseException:
            if with_ray and not cluster_was_up:
                stop_cluster(home)
            raise
        tell("Orchestrator", service.url, time.monotonic() - began)
    return Yard(home=home, cluster=cluster, service=service)


def bring_down(home: Path) -> Taken:
    """End the orchestrator, then Ray with every job on it. Repeatable."""
    with _told():
        service = stop_service(home)
        cluster = stop_cluster(home)
    return Taken(service=service.num_found, cluster=cluster.num_found)


def running_cluster(home: Path) -> LocalCluster | None:
    """Return the Ray that `bring_up` started for `home`, if it runs."""
    cluster = read_cluster(home)
    return cluster if cluster is not None and is_running(cluster.ray) else None


def is_up(home: Path) -> bool:
    """Whether an orchestrator that `bring_up` started for `home` runs."""
    service = read_service(home)
    return service is not None and is_running(service.service)


def _refuse_taken(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # what has just ended may still be remembered
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CliError(
                f"the orchestrator cannot listen on {host}:{port}: {error.strerror}",
                remedy="Another port: SHARDYARD_PORT=8400 shardyard up. Or 0, for any free one.",
                code=ExitCode.UNREACHABLE,
            ) from error


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except LocalClusterError as error:
        raise CliError(
            str(error), remedy="`shardyard doctor` looks for the cause.", code=ExitCode.UNREACHABLE
        ) from error
