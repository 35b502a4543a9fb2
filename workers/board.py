"""Where a rank is, in memory shared with its agent: readable even after a SIGKILL. Knows no torch."""

from typing import Any, Final, get_args

from workers.progress import Phase, Progress

BOARD_SIZE: Final = 2  # 64-bit integers: the phase as an index into PHASES; the step in work, -1 for none
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
_NO_STEP: Final = -1


class BoardProgress(Progress):
    """A progress that is also written to shared memory: two stores a step."""

    __slots__ = ("_board",)
    _board: Any

    def __init__(self, board: Any) -> None:
        """Take over `board`, an array of BOARD_SIZE integers."""
        object.__setattr__(self, "_board", board)
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "phase":
            self._board[0] = PHASES.index(value)
        elif name == "step":
            self._board[1] = _NO_STEP if value is None else value


def clear_board(board: Any) -> None:
    """Set it to what a rank is before its first line."""
    board[0], board[1] = 0, _NO_STEP


def read_board(board: Any) -> tuple[Phase, int | None]:
    """Return the phase and the step in work that a rank left on its board."""
    return PHASES[board[0]], None if board[1] == _NO_STEP else int(board[1])
