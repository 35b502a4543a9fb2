"""One local Ray for the tier, and runs on it (`ray_runs`)."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.local_cluster import LocalCluster, start_cluster, stop_cluster

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(here)

from ray_runs import Run, driver_environment


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalCluster]:
    """A Ray of 4 CPUs that this tier shares."""
    with tempfile.TemporaryDirectory(prefix="sy-t-") as home:
        yield start_cluster(Path(home), environ=os.environ, num_cpus=4)
        stop_cluster(Path(home))


@pytest.fixture
def run(ray_cluster: LocalCluster, tmp_path: Path) -> Iterator[Run]:
    """A run directory on the shared Ray."""
    made = Run(tmp_path / "run", driver_environment(ray_cluster))
    yield made
    made.end()
