"""What a rank shows of itself while it cannot speak: collectives it has issued, and its stacks when it is asked."""

import faulthandler
import os
import signal
import threading
from types import FrameType
from typing import Any, Final

import torch.distributed as dist

from workers.board import STACKS_SIGNAL, BoardProgress

_LOOK_SECONDS: Final = 1.0


def show_stacks_when_asked() -> None:
    """Write the stacks of all threads to this process's stderr at STACKS_SIGNAL, also inside a C call."""
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)


def heed_notice(progress: BoardProgress) -> None:
    """Take SIGTERM for a notice: training goes on until all ranks leave together. The user's own handler replaces this.

    What is forked from here is not meant by it: there SIGTERM ends the process, as it does everywhere else.
    """

    def handle(_signal: int, _frame: FrameType | None) -> None:
        progress.tell_notice()

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handle)
    os.register_at_fork(after_in_child=forget)


def count_collectives(progress: BoardProgress) -> None:
    """Keep the count on the board up to date from a thread of its own, as long as the process lives.

    A rank that hangs has issued fewer than those that wait for it. Costs a few microseconds a second.
    """
    threading.Thread(target=_count, args=(progress,), name="pulse", daemon=True).start()


def _count(progress: BoardProgress) -> None:
    pause = threading.Event()
    while not pause.wait(_LOOK_SECONDS):
        progress.count_collectives(collectives_issued())


def collectives_issued() -> int:
    """Return how many collectives this rank has issued, all process groups together; 0 before it has met the others."""
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(
        dist.distributed_c10d._world.pg_map
    )  # private, as below; nothing else lists and counts
    return sum(group._get_sequence_number_for_group() for group in groups)
