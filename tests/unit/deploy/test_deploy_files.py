"""What we hand to Ray, Docker and Prometheus is what they accept, and uses only settings that exist."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orchestrator.settings import PREFIX, Settings

TOP = Path(__file__).parents[3]
COMPOSE = TOP / "deploy" / "compose" / "compose.yaml"
KEEP = TOP / "deploy" / "ray" / "keep.sh"

# As `ray up` does it: read, fill in the provider's defaults, check against the schema.
CHECK_CLUSTER = """
import sys, yaml
from ray.autoscaler._private.util import prepare_config, validate_config
config = prepare_config(yaml.safe_load(open(sys.argv[1])))
validate_config(config)
print(sorted(config["available_node_types"]))
"""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment}
    )


def tool(name: str) -> str:
    """A program of our own environment, or of the machine; the test is skipped where neither has it."""
    own = Path(sys.executable).with_name(name)
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def wait_for(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def cluster_commands() -> list[str]:
    config = YAML(typ="safe").load(TOP / "ray_cluster.yaml")
    return [
        *config["setup_commands"],
        *config["head_start_ray_commands"],
        *config["worker_start_ray_commands"],
    ]


def test_ray_accepts_the_cluster_file() -> None:
    done = run(sys.executable, "-c", CHECK_CLUSTER, TOP / "ray_cluster.yaml")
    assert done.returncode == 0, done.stderr
    assert "local.cluster.node" in done.stdout


def test_every_command_of_the_cluster_file_is_shell_and_none_of_them_ends_a_stranger() -> None:
    for command in cluster_commands():
        assert run("bash", "-n", "-c", command).returncode == 0, command
        assert "ray stop" not in command
    starts = [command for command in cluster_commands() if "ray start" in command]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)


@pytest.mark.parametrize("path", [TOP / "ray_cluster.yaml", COMPOSE], ids=lambda path: path.name)
def test_only_settings_that_exist_are_set(path: Path) -> None:
    named = {name.lower() for name in re.findall(rf"{PREFIX}(\w+)[=:]", path.read_text())}
    assert named
    assert named <= set(Settings.model_fields)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(tool("hadolint"), TOP / "deploy" / "docker" / "Dockerfile")
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""


def test_compose_accepts_its_file_and_publishes_on_loopback_only() -> None:
    done = run(tool("docker-compose"), "--file", COMPOSE, "config")
    assert done.returncode == 0, done.stderr
    services = YAML(typ="safe").load(done.stdout)["services"]
    assert set(services) == {"head", "worker", "orchestrator", "prometheus", "grafana"}
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for pid_file in tmp_path.glob("*.pid"):
        run(KEEP, "stop", pid_file.stem, SHARDYARD_HOME=str(tmp_path))


def kept(home: Path, *command: str) -> None:
    done = run(KEEP, "start", "thing", *command, SHARDYARD_HOME=str(home))
    assert done.returncode == 0, done.stderr


def test_a_kept_program_comes_back_when_it_ends_until_it_is_stopped(home: Path) -> None:
    started = home / "started"
    kept(home, "sh", "-c", f"echo $$ >>{started}; exec sleep 600")
    wait_for(started.exists, "the program starts")
    wait_for(lambda: bool(started.read_text()), "it says its pid")
    os.kill(int(started.read_text()), 9)
    wait_for(lambda: len(started.read_text().split()) == 2, "it starts again")
    last = int(started.read_text().split()[1])
    assert run(KEEP, "stop", "thing", SHARDYARD_HOME=str(home)).returncode == 0
    assert not Path(f"/proc/{last}").exists()
    assert not (home / "thing.pid").exists()


def test_starting_a_kept_program_again_replaces_it(home: Path) -> None:
    started = home / "started"
    for turn in (1, 2):
        kept(home, "sh", "-c", f"echo $$ >>{started}; exec sleep 600")
        wait_for(lambda n=turn: started.exists() and len(started.read_text().split()) == n, "it starts")
    first, second = map(int, started.read_text().split())
    assert not Path(f"/proc/{first}").exists()
    assert Path(f"/proc/{second}").exists()
