"""Where a rank is, in memory shared with its agent: readable while it hangs and after a SIGKILL. Knows no torch."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args

from workers.progress import Phase, Progress

BOARD_SIZE: Final = 9  # 64-bit integers, in this order:
_PHASE, _STEP, _SINCE, _USUAL, _COLLECTIVES, _NEXT, _LEAVE, _NOTICE, _HANDLES = range(BOARD_SIZE)
_GO, _HOLD, _AFTER = range(3)  # what _LEAVE says; _AFTER + n: leave once n steps are finished
_HOLD_LOOK_SECONDS: Final = 0.002
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
STACKS_SIGNAL: Final = signal.SIGRTMIN + 5  # makes a rank write the stacks of its threads into its log
_NO_STEP: Final = -1
_WARM_UP_STEPS: Final = 2  # they compile, allocate and fill caches: what they take is not usual
_MEMORY_STEPS: Final = 20  # over about so many steps the usual duration is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A board at one moment. Nanoseconds are of the machine's monotonic clock, which all its processes share."""

    phase: Phase
    step: int | None  # in work
    since_ns: int  # when phase or step last changed
    usual_step_ns: int  # mean over the last steps; 0 while the rank warms up
    collectives: int  # issued so far, all process groups together, a second old at most while the rank runs
    is_told_to_leave: bool = False  # it got SIGTERM
    handles_sigterm: bool = False  # by a handler of the user's own, which knows best; a second old at most


class BoardProgress(Progress):
    """A progress that is also written to shared memory, with how long steps usually take: a microsecond a step."""

    __slots__ = ("_began_ns", "_board", "_clock_ns", "_steps")
    _board: Any
    _clock_ns: Callable[[], int]
    _began_ns: int  # of the step in work; 0: none
    _steps: int

    def __init__(self, board: Any, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Take over `board`, an array of BOARD_SIZE integers."""
        for name, value in (("_board", board), ("_clock_ns", clock_ns), ("_began_ns", 0), ("_steps", 0)):
            object.__setattr__(self, name, value)
        super().__init__()

    def count_collectives(self, issued: int) -> None:
        """Write down how many collectives this rank has issued. From any thread."""
        self._board[_COLLECTIVES] = issued

    def tell_handler(self, is_the_users: bool) -> None:
        """Write down whose handler SIGTERM would call. From any thread."""
        self._board[_HANDLES] = int(is_the_users)

    def tell_notice(self) -> None:
        """Write down that this process was told to leave. Safe in a signal handler."""
        self._board[_NOTICE] = 1

    def may_begin(self, step: int) -> bool:
        """Hold where the agent asks for it; False once as many as `step` finished steps is where all ranks leave.

        First this rank writes where it stands, then it reads what it shall do; `ask_to_leave` does the same the other
        way round. So whoever is second sees what the first one wrote: a rank that an agent saw in step n holds before
        step n + 1 at the latest.
        """
        self._board[_NEXT] = step + 1  # 0: it has not come to its first step yet
        while (word := self._board[_LEAVE]) == _HOLD:
            time.sleep(_HOLD_LOOK_SECONDS)
        return bool(word == _GO or step < word - _AFTER)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        now = self._clock_ns()
        if self._began_ns:  # whichever changes: the step that was in work is over
            self._learn(now - self._began_ns)
        is_step = name == "step" and value is not None
        object.__setattr__(self, "_began_ns", now if is_step else 0)
        if name == "phase":
            self._board[_PHASE] = PHASES.index(value)
        elif name == "step":
            self._board[_STEP] = _NO_STEP if value is None else value
        self._board[_SINCE] = now

    def _learn(self, took_ns: int) -> None:
        object.__setattr__(self, "_steps", self._steps + 1)
        if self._steps > _WARM_UP_STEPS:
            usual = self._board[_USUAL]
            self._board[_USUAL] = usual + (took_ns - usual) // _MEMORY_STEPS if usual else took_ns


def clear_board(board: Any) -> None:
    """Set it to what a rank is before its first line."""
    board[_PHASE], board[_STEP], board[_SINCE] = 0, _NO_STEP, time.monotonic_ns()
    board[_USUAL:] = [0] * (BOARD_SIZE - _USUAL)


def ask_to_leave(board: Any, after_steps: int | None) -> int:
    """Make the rank hold before its next step (None), or leave once so many steps are finished.

    Returns how many steps it has certainly finished, the one in work left out; -1 before its first one.
    """
    board[_LEAVE] = _HOLD if after_steps is None else _AFTER + after_steps
    return int(board[_NEXT]) - 1


def read_board(board: Any) -> Reading:
    """Return where the rank is, or was when it ended."""
    return Reading(
        phase=PHASES[board[_PHASE]],
        step=None if board[_STEP] == _NO_STEP else int(board[_STEP]),
        since_ns=int(board[_SINCE]),
        usual_step_ns=int(board[_USUAL]),
        collectives=int(board[_COLLECTIVES]),
        is_told_to_leave=bool(board[_NOTICE]),
        handles_sigterm=bool(board[_HANDLES]),
    )
