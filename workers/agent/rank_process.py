"""One forked rank as its agent sees it: what it says, that it lives, and how it ended."""

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from workers.agent.forkserver import WarmForkserver
from workers.agent.messages import Stalled
from workers.board import BOARD_SIZE, STACKS_SIGNAL, ask_to_leave, clear_board, read_board
from workers.contract.failure import FailureClass, RankEnding
from workers.contract.launch import RankOrder
from workers.contract.rank_messages import Done, Failed, Left, Measured, Ready, Told, parse_rank_message

STALL_SECONDS: Final = 5.0  # from then on a standstill is told; whether it is a hang, the driver judges
STALL_STEPS: Final = 2.0  # so many usual steps, where they take longer
_LAST_WORDS_SECONDS: Final = 1.0  # for the pipe to run dry after the process is gone


class RankProcess:
    """A running rank. `wake` is called, from another thread, when `take` has something."""

    def __init__(
        self,
        server: WarmForkserver,
        target: Callable[..., None],
        order: RankOrder,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order = order
        self.began_at = clock()
        self.failed: Failed | None = None
        self.done: Done | Left | None = None
        self._clock = clock
        self._wake = wake
        self._server = server
        self._lines: deque[bytes] = deque()
        self._asked_at_ns = 0  # for its stacks: the standstill that it was asked in
        self._board: Any = server.board(BOARD_SIZE)
        clear_board(self._board)
        self._conn, child = server.pipe()
        self._process = server.fork(target, order.to_json(), child, self._board)
        child.close()
        self._reader = threading.Thread(target=self._read, name=f"rank-{order.rank}-reader", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The rank's process id, which is also its process group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """Ready when the process is gone."""
        return self._process.sentinel

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return bool(wait([self.sentinel], timeout=0))

    def take(self) -> list[Ready | Measured | Told | Done | Left]:
        """Return what the rank has said since; `Failed` is kept for the ending."""
        said: list[Ready | Measured | Told | Done | Left] = []
        while self._lines:
            try:
                message = parse_rank_message(self._lines.popleft())
            except ValidationError:
                continue  # no rank of ours: user code wrote into our pipe
            if isinstance(message, Failed):
                self.failed = message
                continue
            if isinstance(message, Done | Left):
                self.done = message
            said.append(message)
        return said

    def stall(self) -> Stalled | None:
        """Say where the rank stands if it has stood there for long; asks it for its stacks the first time."""
        read = read_board(self._board)
        seconds = (time.monotonic_ns() - read.since_ns) / 1e9
        if seconds < max(STALL_SECONDS, STALL_STEPS * read.usual_step_ns / 1e9):
            return None
        if self._asked_at_ns != read.since_ns:
            self._asked_at_ns = read.since_ns
            os.kill(self.pid, STACKS_SIGNAL)
        return Stalled(
            rank=self.order.rank,
            round=self.order.round.round,
            seconds=seconds,
            phase=read.phase,
            step=read.step,
            usual_step_seconds=read.usual_step_ns / 1e9,
            collectives=read.collectives,
            process_state=_state_of(self.pid),
        )

    def ask_to_end(self, seconds: float) -> bool:
        """Give a SIGTERM handler of the user's own its chance, and the rank `seconds` to leave by itself.

        False for a rank without one, which is not asked: to ours SIGTERM is a notice, and it would train on.
        """
        if seconds <= 0 or self.is_gone or not read_board(self._board).handles_sigterm:
            return False
        os.kill(self.pid, signal.SIGTERM)
        wait([self.sentinel], timeout=seconds)
        return True

    @property
    def is_told_to_leave(self) -> bool:
        """Whether it got SIGTERM."""
        return read_board(self._board).is_told_to_leave

    def ask_to_leave(self, after_step: int | None) -> int:
        """Make it hold (None) or leave after a step; returns the last one that it has certainly finished."""
        return ask_to_leave(self._board, after_step)

    def end(self, spare: tuple[int, ...]) -> None:
        """Kill the rank with all that it started, and remove its scratch files; what it said before can still be taken."""
        if not self.is_gone:
            self._process.kill()
        with contextlib.suppress(
            ProcessLookupError
        ):  # no group: it died before it made one, or left nobody in it
            os.killpg(self.pid, signal.SIGKILL)
        self._server.sweep(spare)
        self._process.join()
        self._server.sweep_files()
        self._reader.join(timeout=_LAST_WORDS_SECONDS)
        self._conn.close()

    def ending(self, *, ordered: bool) -> RankEnding:
        """Say how it ended; call it after `end`."""
        left = read_board(self._board)
        exit_code = self._process.exitcode
        base = RankEnding(
            rank=self.order.rank,
            node=self.order.node,
            at=self._clock() - self.began_at,
            exit_code=exit_code,
            phase=left.phase,
            step=left.step,
            ordered=ordered,
        )
        if self.failed is not None:
            said = self.failed.model_dump(exclude={"type"})
            return base.model_copy(update={**said, "failure_class": self.failed.failure_class})
        if exit_code == 0 and not ordered:
            return base.model_copy(
                update={
                    "failure_class": FailureClass.USER_CODE,
                    "error_type": "EarlyExit",
                    "message": "the process exited with code 0 before the last step",
                }
            )
        return base

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._lines.append(self._conn.recv_bytes())
                self._wake()
        self._wake()


def _state_of(pid: int) -> str:
    """Return the kernel's letter for a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
