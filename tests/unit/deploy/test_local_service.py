"""The service as a process of its own: it answers when we say so, and is gone when we say so."""

import os
from pathlib import Path

import httpx
import pytest

from orchestrator import processes
from orchestrator.local_service import read_service, start_service, stop_service
from orchestrator.local_state import LocalClusterError

ENVIRON = {**os.environ, "SHARDYARD_PORT": "0"}


def test_the_service_answers_once_it_is_said_to_run_and_is_gone_after_stop(tmp_path: Path) -> None:
    service = start_service(tmp_path, environ=ENVIRON, cluster=None)
    try:
        assert httpx.get(f"{service.url}/healthz").is_success
        assert start_service(tmp_path, environ=ENVIRON, cluster=None) == service
        assert read_service(tmp_path) == service
    finally:
        ended = stop_service(tmp_path)
    assert ended.num_found >= 1
    assert processes.family(service.service.mark, session=service.service.pid) == []
    assert read_service(tmp_path) is None
    assert stop_service(tmp_path).num_found == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/healthz")


def test_a_service_that_refuses_its_settings_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="SHARDYARD_LEASE_SECONDS"):
        start_service(tmp_path, environ={**ENVIRON, "SHARDYARD_LEASE_SECONDS": "-1"}, cluster=None)
    assert read_service(tmp_path) is None


def test_a_second_home_has_a_service_of_its_own(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    try:
        one, two = (start_service(home, environ=ENVIRON, cluster=None) for home in homes)
        stop_service(homes[0])
        assert httpx.get(f"{two.url}/healthz").is_success
        assert not processes.is_running(one.service)
    finally:
        for home in homes:
            stop_service(home)


def test_a_service_that_was_told_otherwise_is_started_anew_and_keeps_what_jobs_may_use(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    home = tmp_path / "home"
    first = start_service(home, environ={**ENVIRON, "SHARDYARD_ALLOWED_ROOTS": str(one)}, cluster=None)
    try:
        assert start_service(home, environ=ENVIRON, cluster=None) == first, "nothing new was asked for"
        second = start_service(home, environ={**ENVIRON, "SHARDYARD_ALLOWED_ROOTS": str(two)}, cluster=None)
        assert second.service != first.service
        assert not processes.is_running(first.service)
        assert httpx.get(f"{second.url}/healthz").is_success
        assert second.settings["SHARDYARD_ALLOWED_ROOTS"] == f"{one},{two}"
    finally:
        stop_service(home)
