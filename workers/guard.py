"""How a forked process ends with the one that asked for it: nothing on Linux does so by itself.

A child of multiprocessing's forkserver inherits the descriptor that keeps the forkserver alive, and its real parent
is the forkserver. So when the asking process (the agent) is killed, the child must be told by three things:
the descriptor is closed, so that the forkserver notices and ends; the kernel then kills its children
(PR_SET_PDEATHSIG), even in a C call that holds the interpreter lock; and a thread watches the agent itself.
"""

import ctypes
import os
import signal
import threading
from multiprocessing import forkserver, parent_process
from multiprocessing.connection import wait
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1


def leave_forkserver() -> None:
    """Close the inherited descriptor that would keep the forkserver alive. First line of every forked process."""
    server: Any = forkserver._forkserver  # private, as in Python 3.11 to 3.14
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def end_with_parent() -> None:
    """Die with the forkserver and with the agent, and let every process that is forked from here die with this one."""
    leave_forkserver()
    _die_with_parent_thread()
    parent = parent_process()
    if parent is not None:
        watcher = threading.Thread(
            target=_watch, args=(parent.sentinel,), name="shardyard-guard", daemon=True
        )
        watcher.start()
    forker = _Forker()
    os.register_at_fork(before=forker.before, after_in_child=forker.after_in_child)


def _die_with_parent_thread() -> None:
    """Ask the kernel for SIGKILL when the thread that forked this process ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _watch(sentinel: int) -> None:
    wait([sentinel])
    if os.getpgid(0) == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class _Forker:
    """Hooks of os.fork: what a main thread forks (data loaders) dies with it.

    The kernel's rule is about the forking *thread*, so a child of a short-lived thread is left alone; the agent's
    sweep finds it.
    """

    def __init__(self) -> None:
        self._by_main_thread = False

    def before(self) -> None:
        self._by_main_thread = threading.current_thread() is threading.main_thread()

    def after_in_child(self) -> None:
        if self._by_main_thread:
            _die_with_parent_thread()
