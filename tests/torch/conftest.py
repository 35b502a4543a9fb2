"""Fixtures of the gloo tier. A child process imports `gloo_ranks` by name, so its directory is put on the path."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(here)  # multiprocessing hands our sys.path to the children

if TYPE_CHECKING:
    from gloo_ranks import Launcher


@pytest.fixture(scope="session")
def ranks() -> "Launcher":
    """Run a module-level function on N ranks: `ranks(body, 2, *args)` returns the values by rank.

    `body(world, *args)` gets a `workers.world.World` that has met (`join=False`: a `Seat` that has not). Arguments
    and values are pickled. `ranks.start(...)` returns at once, for tests that kill: `.pids`, `.kill(rank)`,
    `.outcomes(seconds)`.
    """
    from gloo_ranks import Launcher  # heavy: only tests that start ranks pay for it

    return Launcher()
