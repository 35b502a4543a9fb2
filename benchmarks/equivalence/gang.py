"""Rank processes for a run: forked from a warm forkserver, met over gloo, ended together. A rank that fails ends them all."""

import os
import pickle
import secrets
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from workers.agent.preload import preload
from workers.world import leave_world, meet

PRELOAD: Final = (*preload("deepspeed"), "workers.engines")  # what ranks would import, for seconds each
GRACE_SECONDS: Final = 5.0  # for the others to say what they saw, once a rank has failed
LOG_TAIL: Final = 600  # characters of a silent rank's log that are told


class GangError(Exception):
    """A rank did not return: says which, and how it ended."""


class Gang:
    """Starts groups of ranks. One rendezvous store serves them all, as in the product."""

    def __init__(self) -> None:
        """Start the forkserver. Close it: it owns a directory of logs."""
        os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")  # read by what is preloaded
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOAD))
        self._store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch does not mark it as such
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self._logs = Path(tempfile.mkdtemp(prefix="equivalence-"))

    def close(self) -> None:
        """Remove the logs."""
        shutil.rmtree(self._logs, ignore_errors=True)

    def run(
        self, body: Callable[..., Any], world_size: int, *args: Any, seconds: float, **options: Any
    ) -> list[Any]:
        """Return what `body(world, *args, **options)` returned, by rank. Raises GangError if one of them did not."""
        prefix = secrets.token_hex(4)
        address = f"127.0.0.1:{self._store.port}"
        with ExitStack() as stack:
            processes, pipes = [], []
            for rank in range(world_size):
                ours, theirs = self._context.Pipe(duplex=False)
                log = self._logs / f"rank-{rank}.log"
                seat = {"rank": rank, "world_size": world_size, "store_address": address, "prefix": prefix}
                process = self._context.Process(
                    target=_rank_main, args=(theirs, log, seat, body, args, options), daemon=True
                )
                process.start()
                stack.callback(_end, process, ours)
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            said = _listen(pipes, seconds)
        failures: dict[str, list[int]] = {}
        for rank, process in enumerate(processes):
            if (how := self._failure(rank, process, said.get(rank))) is not None:
                failures.setdefault(how, []).append(rank)
        if failures:
            raise GangError("; ".join(f"ranks {ranks}: {how}" for how, ranks in failures.items()))
        return [said[rank]["value"] for rank in range(world_size)]

    def _failure(self, rank: int, process: BaseProcess, said: dict[str, Any] | None) -> str | None:
        """Return how a rank failed; None if it did not."""
        if said is not None:
            return said.get("error")
        tail = (self._logs / f"rank-{rank}.log").read_text(errors="replace")[-LOG_TAIL:].strip()
        return f"silent until it was ended or died (exit code {process.exitcode}); its log: {tail or 'empty'}"


def _listen(pipes: Sequence[connection.Connection], seconds: float) -> dict[int, dict[str, Any]]:
    """Return what each rank said until `seconds` are over, or shortly after the first failure."""
    said: dict[int, dict[str, Any]] = {}
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    deadline = time.monotonic() + seconds
    while open_pipes and (left := deadline - time.monotonic()) > 0:
        for pipe in connection.wait(list(open_pipes), timeout=left):
            assert isinstance(pipe, connection.Connection)
            rank = open_pipes.pop(pipe)
            try:
                said[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:  # killed
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                continue
            if "error" in said[rank]:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    return said


def _end(process: BaseProcess, pipe: connection.Connection) -> None:
    """Wait for the end of a rank that has spoken, kill one that has not."""
    process.join(GRACE_SECONDS if pipe.closed or pipe.poll() else 0.0)
    if process.is_alive():
        process.kill()
        process.join()
    pipe.close()


def _rank_main(
    pipe: connection.Connection,
    log: Path,
    seat: dict[str, Any],
    body: Callable[..., Any],
    args: Sequence[Any],
    options: dict[str, Any],
) -> None:
    torch.set_num_threads(1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        world = meet(**seat, device=torch.device("cpu"), network_interface="lo")
        said: dict[str, Any] = {"value": body(world, *args, **options)}
        leave_world()
    except Exception as error:  # noqa: BLE001 -- the root of the process: the other side raises it
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = {"error": f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"}
        traceback.print_exc()
    pipe.send_bytes(pickle.dumps(said))
    pipe.close()
