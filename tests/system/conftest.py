"""The whole product for this tier: one Ray cluster and one orchestrator, started as `shardyard up` starts them."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(here)

from live_yard import LiveYard


@pytest.fixture(scope="session")
def yard() -> Iterator[LiveYard]:
    """A yard of 4 CPUs. It is down again afterwards, and nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="sy-s-") as home:
        live = LiveYard(Path(home), environ=os.environ)
        try:
            live.up()
            yield live
        finally:
            live.down()


@pytest.fixture
def clean_yard(yard: LiveYard) -> Iterator[LiveYard]:
    """The yard, and afterwards no open job in it."""
    yield yard
    yard.end_all_jobs()
