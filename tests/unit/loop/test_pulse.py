"""Who heeds SIGTERM in a rank."""

import signal
from collections.abc import Iterator

import pytest

from workers.board import BOARD_SIZE, BoardProgress, clear_board, read_board
from workers.pulse import heed_notice


@pytest.fixture
def board() -> Iterator[list[int]]:
    before = signal.getsignal(signal.SIGTERM)
    cells = [0] * BOARD_SIZE
    clear_board(cells)
    yield cells
    signal.signal(signal.SIGTERM, before)


def test_a_notice_is_written_down_until_the_users_own_handler_replaces_ours(board: list[int]) -> None:
    """B128."""
    progress = BoardProgress(board)
    has_own_handler = heed_notice(progress)
    assert not has_own_handler()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert not has_own_handler(), "nobody would hear it"
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    assert has_own_handler()
    progress.tell_handler(has_own_handler())
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert read_board(board).handles_sigterm
    assert not read_board(board).is_told_to_leave
