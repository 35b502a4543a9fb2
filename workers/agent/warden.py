"""The process that outlives a killed agent just long enough to end whatever its ranks left behind."""

import shutil
import signal
import time
from collections.abc import Sequence
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from workers.agent.preload import cold_modules
from workers.agent.sweep import marked, sweep
from workers.guard import leave_forkserver
from workers.scratch import sweep as remove_abandoned

_GIVE_UP_SECONDS: Final = 30.0


def warden_main(
    mark: str, sockets: str, scratch: str | None, preloaded: Sequence[str], conn: Connection
) -> None:
    """Tell what the forkserver did not import, then wait for the agent's end and sweep until nothing is left.

    `sockets` is the directory of the forkserver's socket, which goes last; `scratch` holds files of ranks.
    """
    leave_forkserver()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    conn.send(cold_modules(preloaded))
    conn.close()
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while marked(mark) and time.monotonic() < deadline:
        sweep(mark)
        time.sleep(0.02)
    if scratch is not None:
        remove_abandoned(Path(scratch))
    shutil.rmtree(sockets, ignore_errors=True)
