"""The backend and the local cluster, against a real Ray that this module starts and ends."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil
import pytest

from orchestrator import local_cluster, processes
from orchestrator.cluster import RayJobState, RayUnavailable
from orchestrator.local_cluster import LocalCluster
from orchestrator.ray_backend import RayJobsBackend, ray_job_id
from orchestrator.working_dir import WorkingDirError
from workers.contract.config import Runtime, TrainingConfig
from workers.contract.launch import LaunchRequest
from workers.contract.restart import Counters

pytestmark = pytest.mark.ray

# Stands in for `shardyard-worker drive`: says what reached it, holds an actor, a reservation and a stray child, waits.
DRIVER = """
import json, os, subprocess, sys, time
from pathlib import Path
import ray
from ray.util.placement_group import placement_group

ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
class Holder:
    def hold(self):
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid, os.getcwd()

holder = Holder.remote()
stray, directory = ray.get(holder.hold.remote())
group = placement_group([{"CPU": 1}])
ray.get(group.ready())
out = Path(os.environ["OUT"])
said = {"env": dict(os.environ), "stray": stray, "files": sorted(os.listdir(directory)), "path": sys.path}
out.with_suffix(".draft").write_text(json.dumps(said))
out.with_suffix(".draft").rename(out)
time.sleep(600)
"""


def wait_for(claim: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def holders_of(directory: Path) -> list[int]:
    """Every process that still has a file below `directory` open: Ray's all log there."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            links = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
            if any(link.startswith(f"{directory}/") for link in links):
                found.append(pid)
    return found


def is_live(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def request(job_id: str, run_dir: Path) -> LaunchRequest:
    config = TrainingConfig.model_validate(
        {"model": {"kind": "llama"}, "data": {"kind": "text", "path": "python-stdlib"}}
    )
    return LaunchRequest(
        job_id=job_id,
        name="backend-test",
        generation=0,
        world_size=1,
        gpus_per_worker=0,
        config=config,
        run_dir=str(run_dir),
        counters=Counters(),
        version="0.1.0",
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("home")
    started = local_cluster.start_cluster(
        home, environ={**os.environ, "SHARDYARD_TOKEN": "S3CR3T"}, num_cpus=2
    )
    yield started
    local_cluster.stop_cluster(home)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "driver.py"
    path.write_text(DRIVER)
    return path


@pytest.fixture
def backend(cluster: LocalCluster, driver: Path) -> Iterator[RayJobsBackend]:
    made = RayJobsBackend(
        cluster.url, token_path=cluster.token_path, entrypoint=f"exec {sys.executable} -P {driver}"
    )
    yield made
    made.close()


def test_the_cluster_tells_what_its_node_has(backend: RayJobsBackend) -> None:
    [node] = backend.capacity().nodes
    assert (node.cpus, node.gpus, node.is_head, node.address) == (2, 0, True, "127.0.0.2")


def test_no_port_that_other_machines_reach_answers_without_the_token(cluster: LocalCluster) -> None:
    wide = {
        connection.laddr.port
        for process in processes.family(cluster.ray.mark)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and not connection.laddr.ip.startswith(("127.", "::ffff:127."))
    }
    assert wide, "Ray's gRPC servers"
    for port in wide:
        with pytest.raises(httpx.TransportError):  # they speak HTTP/2 alone, and tell nothing to HTTP/1.1
            httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5, trust_env=False)


def test_a_driver_gets_what_was_handed_down_and_all_it_holds_is_named_until_it_is_gone(
    backend: RayJobsBackend, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("x = 1\n")
    wanted = request("job-a", tmp_path)
    name = ray_job_id(wanted)
    runtime = Runtime(env={"OUT": str(tmp_path / "out"), "PYTHONSAFEPATH": ""}, working_dir=str(code))
    for _ in range(2):  # the second changes nothing
        backend.submit(wanted, report_token="report-only", runtime=runtime)
    wait_for((tmp_path / "out").exists, "the driver holds its actor and reservation")
    said = local_json(tmp_path / "out")
    assert LaunchRequest.from_json(said["env"]["SHARDYARD_LAUNCH_REQUEST"]) == wanted
    assert said["env"]["SHARDYARD_REPORT_TOKEN"] == "report-only"
    assert said["env"]["PYTHONSAFEPATH"] == "1"
    assert "SHARDYARD_TOKEN" not in said["env"]
    assert said["files"] == ["mine.py"]
    assert backend.status(name).state is RayJobState.RUNNING
    held = " ".join(backend.leftovers(name))
    assert "actor Holder (ALIVE)" in held
    assert "placement group" in held

    backend.stop(name)
    wait_for(lambda: backend.status(name).state.is_over, "the driver ended")
    wait_for(lambda: not backend.leftovers(name), "actor and reservation are gone")
    assert backend.status(name).state is RayJobState.STOPPED
    backend.stop(name)
    backend.submit(wanted, report_token="report-only", runtime=runtime)
    assert backend.status(name).state is RayJobState.STOPPED


def test_a_job_that_ray_does_not_know_is_missing_holds_nothing_and_can_be_stopped(
    backend: RayJobsBackend,
) -> None:
    assert backend.status("nobody-0").state is RayJobState.MISSING
    assert backend.leftovers("nobody-0") == []
    backend.stop("nobody-0")


def test_a_driver_that_cannot_start_says_why(cluster: LocalCluster, tmp_path: Path) -> None:
    backend = RayJobsBackend(
        cluster.url, token_path=cluster.token_path, entrypoint="exec no-such-program-of-ours"
    )
    backend.submit(request("job-b", tmp_path), report_token="t", runtime=Runtime())
    wait_for(lambda: backend.status("job-b-0").state.is_over, "the job failed")
    status = backend.status("job-b-0")
    backend.close()
    assert status.state is RayJobState.FAILED
    assert "no-such-program-of-ours" in status.message


def test_nodes_without_the_package_get_the_services_own_with_the_job(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    say = (
        "import os, pathlib, workers; from importlib.metadata import version; "
        f"pathlib.Path({str(out)!r}).write_text(workers.__file__ + ' ' + version('shardyard'))"
    )
    backend = RayJobsBackend(
        cluster.url,
        token_path=cluster.token_path,
        entrypoint=f'exec python -P -c "{say}"',
        ships_package=True,
    )
    backend.submit(request("job-e", tmp_path), report_token="t", runtime=Runtime())
    wait_for(lambda: backend.status("job-e-0").state.is_over, "the job ended")
    backend.close()
    place, installed = out.read_text().split()
    assert Path(place).is_relative_to(cluster.temp_dir)
    assert installed == version("shardyard")


def test_a_working_directory_that_would_shadow_our_packages_is_refused_and_nothing_submitted(
    backend: RayJobsBackend, tmp_path: Path
) -> None:
    (tmp_path / "workers").mkdir()
    with pytest.raises(WorkingDirError, match="top-level `workers`"):
        backend.submit(
            request("job-c", tmp_path), report_token="t", runtime=Runtime(working_dir=str(tmp_path))
        )
    assert backend.status("job-c-0").state is RayJobState.MISSING


def test_ray_that_refuses_our_token_is_unavailable_and_says_so(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0" * 64)
    backend = RayJobsBackend(cluster.url, token_path=tmp_path / "token")
    with pytest.raises(RayUnavailable, match="refuses the token"):
        backend.capacity()
    backend.close()


def test_down_leaves_no_process_no_file_and_no_token_whatever_the_jobs_started(
    driver: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    cluster = local_cluster.start_cluster(home, environ=os.environ, num_cpus=2)
    try:
        assert local_cluster.start_cluster(home, environ=os.environ) == cluster
        assert cluster.temp_dir.stat().st_mode & 0o077 == 0
        assert cluster.token_path.stat().st_mode & 0o077 == 0
        backend = RayJobsBackend(
            cluster.url, token_path=cluster.token_path, entrypoint=f"exec {sys.executable} -P {driver}"
        )
        out = tmp_path / "out"
        backend.submit(request("job-d", tmp_path), report_token="t", runtime=Runtime(env={"OUT": str(out)}))
        wait_for(out.exists, "the driver runs")
        backend.close()
        stray = local_json(out)["stray"]
        assert is_live(stray)
        assert len(holders_of(cluster.temp_dir)) > 3
        os.kill(cluster.ray.pid, signal.SIGKILL)  # the worst case: nobody is left who would clean up
        wait_for(lambda: not processes.is_running(cluster.ray), "the head process is dead")
    finally:
        ended = local_cluster.stop_cluster(home)
    assert ended.num_found > 0
    assert ended.survivors == ()
    assert processes.family(cluster.ray.mark, session=cluster.ray.pid) == []
    assert holders_of(cluster.temp_dir) == []
    assert not is_live(stray)
    assert not cluster.temp_dir.exists()
    assert not cluster.token_path.exists()
    assert local_cluster.read_cluster(home) is None
    assert local_cluster.stop_cluster(home).num_found == 0


def test_a_cluster_that_cannot_start_says_what_ray_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(local_cluster.LocalClusterError, match="Ray ended while it started"):
        local_cluster.start_cluster(tmp_path, environ=os.environ, num_cpus=-1)
    assert local_cluster.read_cluster(tmp_path) is None


def local_json(path: Path) -> dict[str, object]:

    return json.loads(path.read_text())
