"""Rank processes for tests: a body runs in N processes that met over gloo, and each one's value or error comes back.

The processes are forked from a forkserver that has torch in memory, so that a group costs a fraction of a second.
A body is a module-level function of a test file; the child finds it by file and name.
"""

import importlib.util
import inspect
import os
import pickle
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any, Final

import torch
import torch.distributed as dist

from workers.agent.preload import HF, LORA, preload
from workers.world import World, leave_world, meet

# Imported once by the forkserver; each child then starts in hundredths of a second. DeepSpeed alone takes seconds, and
# so do transformers and peft (which it passes over where they are not installed).
PRELOAD: Final = ("pytest", *preload("deepspeed"), *HF, *LORA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a rank needs to join its group."""

    rank: int
    world_size: int
    store_address: str
    prefix: str

    def join(self, **changes: Any) -> World:
        """Meet the others; `changes` go to `workers.world.meet`."""
        known = {
            "rank": self.rank,
            "world_size": self.world_size,
            "store_address": self.store_address,
            "prefix": self.prefix,
            "device": torch.device("cpu"),
            "network_interface": "lo",
        }
        return meet(**(known | changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one rank ended: with a value, with an error, or without a word (killed)."""

    rank: int
    value: Any = None
    error_type: str | None = None
    error: str = ""  # the traceback
    exit_code: int | None = None


class RankError(AssertionError):
    """A rank of a test did not return."""


class Ranks:
    """Processes of one group, running."""

    def __init__(self, processes: Sequence[BaseProcess], pipes: Sequence[connection.Connection]) -> None:
        self._processes = processes
        self._pipes = pipes

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid or 0 for process in self._processes]

    def kill(self, rank: int, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank."""
        os.kill(self.pids[rank], signal_number)

    def outcomes(self, seconds: float = 60.0) -> list[Outcome]:
        """Wait until every rank has ended and return how, by rank. Whoever is left after `seconds` is killed: RankError."""
        deadline = time.monotonic() + seconds
        said: dict[int, Any] = {}
        open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while open_pipes and (left := deadline - time.monotonic()) > 0:
            for pipe in connection.wait(list(open_pipes), timeout=left):
                rank = open_pipes.pop(pipe)  # type: ignore[call-overload]
                try:
                    said[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    continue  # the rank was killed
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(self._processes) if process.is_alive()]
        self.close()
        if late:
            raise RankError(f"ranks {late} were still running after {seconds} s; the others: {said}")
        return [
            Outcome(rank=rank, exit_code=process.exitcode, **said.get(rank, {}))
            for rank, process in enumerate(self._processes)
        ]

    def close(self) -> None:
        """End whatever still runs."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()


class Launcher:
    """Starts groups; one rendezvous store serves them all, as in the product."""

    def __init__(self) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when DeepSpeed is imported
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOAD))
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @property
    def store_address(self) -> str:
        """host:port of the store."""
        return f"127.0.0.1:{self._store.port}"

    def start(self, body: Callable[..., Any], world_size: int, *args: Any, join: bool = True) -> Ranks:
        """Run `body(world, *args)` on every rank; with `join=False`, `body(seat, *args)` without a group."""
        prefix = f"test-{secrets.token_hex(4)}"
        processes, pipes = [], []
        for rank in range(world_size):
            seat = Seat(rank=rank, world_size=world_size, store_address=self.store_address, prefix=prefix)
            ours, theirs = self._context.Pipe(duplex=False)
            call = (
                inspect.getfile(body),
                body.__module__,
                body.__qualname__,
                pickle.dumps((seat, args)),
                join,
            )
            process = self._context.Process(target=_rank_main, args=(theirs, *call), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return Ranks(processes, pipes)

    def __call__(
        self, body: Callable[..., Any], world_size: int, *args: Any, join: bool = True, seconds: float = 60.0
    ) -> list[Any]:
        """Run `body` on every rank and return the values by rank; RankError with the tracebacks if one failed."""
        outcomes = self.start(body, world_size, *args, join=join).outcomes(seconds)
        failed = [o for o in outcomes if o.error_type is not None or o.exit_code != 0]
        if failed:
            text = "\n".join(f"--- rank {o.rank}, exit code {o.exit_code}\n{o.error}" for o in failed)
            raise RankError(text)
        return [outcome.value for outcome in outcomes]


def _rank_main(
    pipe: connection.Connection, file: str, module_name: str, name: str, payload: bytes, join: bool
) -> None:
    torch.set_num_threads(1)
    try:
        body = getattr(_load(file, module_name), name)
        seat, args = pickle.loads(payload)
        value = _run(body, seat, args) if join else body(seat, *args)
        said: dict[str, Any] = {"value": value}
    except BaseException as error:
        said = {"error_type": type(error).__name__, "error": traceback.format_exc()}
    pipe.send_bytes(pickle.dumps(said))
    pipe.close()


def _run(body: Callable[..., Any], seat: Seat, args: Sequence[Any]) -> Any:
    world = seat.join()
    value = body(world, *args)
    leave_world()
    return value


def _load(file: str, module_name: str) -> Any:
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    return sys.modules[module_name]
