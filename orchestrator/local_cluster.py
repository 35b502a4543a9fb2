"""A Ray cluster of one node and the service, on this machine: started for one state directory, ended without a trace.

Ray runs in a short temp dir of its own, on loopback, with token authentication. Everything is ended by pid,
so other Ray clusters of the machine are left alone. Knows nothing of jobs.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import httpx
from pydantic import ValidationError

from orchestrator import processes
from orchestrator.processes import Ended, Owned
from workers.contract.base import Message

NODE_ADDRESS: Final = "127.0.0.2"  # Ray rewrites 127.0.0.1 to the machine's own address, and joins then hang
DASHBOARD_ADDRESS: Final = "127.0.0.1"
OBJECT_STORE_BYTES: Final = 128 << 20  # nothing large passes through it
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
_START_TRIES: Final = 3  # a free port can be taken between our look and Ray's bind
_POLL_SECONDS: Final = 0.1
_LOG_TAIL_BYTES: Final = 2000


class LocalClusterError(Exception):
    """The cluster or the service did not start, or would not end: what happened, and where its log is."""


class LocalCluster(Message):
    """A Ray cluster that we started. `url` is the Jobs API; both it and `gcs_address` want the token."""

    ray: Owned
    url: str
    gcs_address: str  # what `ray.init(address=...)` takes
    token_path: Path
    temp_dir: Path
    log: Path


class LocalService(Message):
    """The service that we started."""

    service: Owned
    url: str
    log: Path


def start_cluster(
    home: Path,
    *,
    environ: Mapping[str, str],
    num_cpus: int | None = None,
    num_gpus: int | None = None,
) -> LocalCluster:
    """Start Ray for the state directory `home` and return when it takes jobs; return the one that already runs.

    None leaves a resource to Ray's own detection. Takes about 4 s. Raises LocalClusterError; then, and at
    Ctrl-C, nothing of it is left running.
    """
    raise NotImplementedError


def read_cluster(home: Path) -> LocalCluster | None:
    """Return what `start_cluster` left for `home`, whether or not it still runs."""
    raise NotImplementedError


def stop_cluster(home: Path) -> Ended:
    """End exactly the processes of the cluster of `home`, then remove its temp dir and token. Repeatable.

    Raises LocalClusterError if a process would not end.
    """
    raise NotImplementedError


def start_service(home: Path, *, environ: Mapping[str, str], cluster: LocalCluster | None) -> LocalService:
    """Start `shardyard serve` for `home` and return when it answers; return the one that already runs.

    `environ` may hold SHARDYARD_* settings; `cluster` fills in Ray's address. Raises LocalClusterError.
    """
    raise NotImplementedError


def read_service(home: Path) -> LocalService | None:
    """Return what `start_service` left for `home`, whether or not it still runs."""
    raise NotImplementedError


def stop_service(home: Path) -> Ended:
    """End the service of `home`, if one was started here. Repeatable; raises LocalClusterError."""
    raise NotImplementedError
