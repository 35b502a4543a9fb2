"""What a rank shows of itself while it cannot speak: collectives it has issued, who heeds SIGTERM, its stacks when asked."""

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch.distributed as dist

from workers.board import STACKS_SIGNAL, BoardProgress

_LOOK_SECONDS: Final = 1.0


def show_stacks_when_asked() -> None:
    """Write the stacks of all threads to this process's stderr at STACKS_SIGNAL, also inside a C call."""
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)


def heed_notice(progress: BoardProgress) -> Callable[[], bool]:
    """Take SIGTERM for a notice: training goes on until all ranks leave together. The user's own handler replaces this.

    What is forked from here is not meant by it: there SIGTERM ends the process, as it does everywhere else. Returns what
    tells, at any time and from any thread, whether the user's own has replaced this.
    """

    def handle(_signal: int, _frame: FrameType | None) -> None:
        progress.tell_notice()

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handle)
    os.register_at_fork(after_in_child=forget)

    def is_replaced() -> bool:
        now = signal.getsignal(signal.SIGTERM)
        return callable(now) and now is not handle

    return is_replaced


def keep_board(progress: BoardProgress, has_own_handler: Callable[[], bool]) -> None:
    """Keep the board up to date from a thread of its own, as long as the process lives.

    It tells the collectives issued, for a rank that hangs has issued fewer than those that wait for it, and whether the
    user's code handles SIGTERM itself. Costs a few microseconds a second.
    """
    threading.Thread(target=_keep, args=(progress, has_own_handler), name="pulse", daemon=True).start()


def _keep(progress: BoardProgress, has_own_handler: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not pause.wait(_LOOK_SECONDS):
        progress.tell_handler(has_own_handler())
        progress.count_collectives(collectives_issued())


def collectives_issued() -> int:
    """Return how many collectives this rank has issued, all process groups together; 0 before it has met the others."""
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(
        dist.distributed_c10d._world.pg_map
    )  # private, as below; nothing else lists and counts
    return sum(group._get_sequence_number_for_group() for group in groups)
