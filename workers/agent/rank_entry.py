"""The door to the rank's code: what the agent names when it forks, so that it never imports torch itself."""

from multiprocessing.connection import Connection
from typing import Any


def rank_entry(order_json: str, conn: Connection, board: Any) -> None:
    """Run `workers.rank.rank_main`. Called in the forked process, where torch is imported already."""
    from workers.rank import rank_main  # the agent must not load torch; the forkserver has loaded this

    rank_main(order_json, conn, board)
