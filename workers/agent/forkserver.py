"""A forkserver with torch and the ranks' code imported: a rank forked from it starts in about 40 ms.

Runs in the agent, which itself never imports torch. The server is multiprocessing's own, one per process.
"""

import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver as mp_forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from workers.agent.preload import PRELOAD
from workers.agent.sweep import MARK, marked, sweep
from workers.agent.warden import warden_main
from workers.scratch import sweep as remove_abandoned


class ColdForkserverError(Exception):
    """The forkserver did not come up: what it imports is broken on this node."""


class WarmForkserver:
    """Starts when constructed; `fork` makes processes until `stop`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        preloaded: Sequence[str] = PRELOAD,
        scratch: str | None = None,
        seconds: float = 120.0,
    ) -> None:
        """Start it with `environment` added to ours, and wait until it has imported what is `preloaded`.

        Raises ColdForkserverError. `scratch` is where ranks put files that go with them (`workers.scratch`).

        The environment of this process changes for good: everything below must inherit the mark.
        """
        assert _server()._forkserver_pid is None, (
            "the forkserver of this process was started by somebody else"
        )
        began = time.monotonic()
        self.mark = f"{os.getpid()}-{secrets.token_hex(4)}"
        os.environ.update(
            environment,
            PYTORCH_NVML_BASED_CUDA_CHECK="1",  # else asking for CUDA in the server poisons every fork
        )
        os.environ[MARK] = self.mark
        self._sockets = _socket_directory()
        self._scratch = scratch
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preloaded))
        receiver, sender = self._context.Pipe(duplex=False)
        try:
            self.warden = self.fork(warden_main, self.mark, self._sockets, scratch, tuple(preloaded), sender)
            sender.close()
            if not receiver.poll(seconds):
                raise ColdForkserverError(f"not warm within {seconds:g} s")
            self.cold_modules: tuple[str, ...] = receiver.recv()
        except (EOFError, OSError) as error:
            raise ColdForkserverError(f"{type(error).__name__}: {error}") from error
        finally:
            receiver.close()
        self.seconds = time.monotonic() - began

    @property
    def pid(self) -> int:
        """The server's process id."""
        return int(_server()._forkserver_pid)

    def pipe(self) -> tuple[Connection, Connection]:
        """Return both ends of a two-way pipe, fit to be passed to `fork`."""
        return self._context.Pipe()

    def board(self, values: int) -> Any:
        """Return shared memory of so many integers that both sides may write; it outlives a killed rank."""
        return self._context.RawArray("q", values)

    def fork(self, target: Callable[..., None], *args: Any) -> BaseProcess:
        """Start `target(*args)` in a process of its own. `target` guards itself (`workers.guard`)."""
        process = self._context.Process(target=target, args=args)
        process.start()
        return process

    def sweep(self, spare: tuple[int, ...] = ()) -> list[int]:
        """End everything that descends from here but the server, the warden and `spare`."""
        warden = self.warden.pid
        assert warden is not None
        return sweep(self.mark, spare=(self.pid, warden, *spare))

    def sweep_files(self) -> None:
        """Remove what ranks that are gone have left in their scratch directories."""
        if self._scratch is not None:
            remove_abandoned(Path(self._scratch))

    def stop(self, *, seconds: float = 10.0) -> list[int]:
        """End everything, the server last; return what would not go within `seconds`."""
        deadline = time.monotonic() + seconds
        sweep(self.mark, spare=(self.pid,))
        self.warden.join(timeout=seconds)
        stop_forkserver()
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            sweep(self.mark)
            time.sleep(0.01)
        shutil.rmtree(self._sockets, ignore_errors=True)
        return left


def stop_forkserver() -> None:
    """End the forkserver of this process, if there is one; the next fork would start another, with its own directory."""
    server = _server()
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]  # private, as below


def _socket_directory() -> str:
    """Make the directory where multiprocessing puts the server's socket: one of its own stays behind a killed agent."""
    directory = tempfile.mkdtemp(prefix="shardyard-agent-")
    multiprocessing.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]  # private, as below
    return directory


def _server() -> Any:
    """multiprocessing's own, one per process; private, as in Python 3.11 to 3.14."""
    return mp_forkserver._forkserver


def hide_main_module() -> None:
    """Keep forked processes from importing this process' `__main__`: in a Ray worker that is a file of Ray's.

    It would cost 0.4 s in every rank and put Ray into it. Only for processes that are the agent's own.
    """
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        del main.__file__
    main.__spec__ = None
