"""Signals: at once where a command owns nothing yet, in order where it owns other processes."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTED: Final = 130  # as ExitCode has it; this module is imported before anything that takes time


def leave_at_once() -> None:
    """Let Ctrl-C end the process without a word from now on, unless whoever started it has it ignore that.

    For imports, which turn a KeyboardInterrupt into errors of their own, or swallow it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """`leave_at_once` while a command imports what it needs; before it starts anything."""
    with _kept():
        leave_at_once()
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt: the command tidies up, and says how to go on."""
    with _kept():
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@contextmanager
def _kept() -> Iterator[None]:
    """Put the handler of SIGINT back afterwards; only the main thread can have changed it."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and the loss of the terminal unwind the command as Ctrl-C does. Main thread only."""

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_interrupted() -> Iterator[None]:
    """Let an orderly ending finish: a second Ctrl-C would leave half of it."""
    numbers = (signal.SIGINT, *ENDINGS)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
