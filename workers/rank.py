"""The rank process: forked by the agent from its warm forkserver, joins its round, trains, and says how it ended.

Knows torch (through `world` and `loop`), never Ray. Whatever happens here ends in exactly one of: `Done` and exit
code 0, `Failed` and exit code 1 (or the code that user code exits with), or a death that the agent sees.
"""

import faulthandler
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from workers import errors
from workers.board import BoardProgress
from workers.contract.failure import FailureClass, is_echo
from workers.contract.launch import RankOrder
from workers.contract.rank_messages import Done, Failed, Left, Measured, RankMessage
from workers.contract.rundir import rank_log
from workers.guard import end_with_parent
from workers.loop import train
from workers.progress import Progress
from workers.pulse import heed_notice, keep_board, show_stacks_when_asked
from workers.world import join_world

TRACE_IMPORTS: Final = (
    "SHARDYARD_TRACE_IMPORTS"  # set in the ranks' environment: what is imported late goes to the log
)
_CLASSES: Final[tuple[tuple[type[BaseException], FailureClass], ...]] = (
    (errors.ConfigError, FailureClass.CONFIG),
    (errors.RendezvousError, FailureClass.RENDEZVOUS),
    (errors.CollectiveError, FailureClass.INTERNAL),
    (errors.NonFiniteError, FailureClass.NON_FINITE),
    (errors.DamagedCheckpointError, FailureClass.CHECKPOINT_DAMAGED),
    (errors.StorageError, FailureClass.STORAGE),
    (errors.WorkerError, FailureClass.INTERNAL),
    (MemoryError, FailureClass.OUT_OF_MEMORY),
)


def rank_main(order_json: str, conn: Connection, board: Any) -> None:
    """Run one rank of one round and leave the process: never returns.

    `conn` takes rank messages, `board` (shared integers) says where the rank is even after a SIGKILL.
    """
    end_with_parent()
    os.setsid()  # a group of its own: no Ctrl-C of a terminal, and the agent can end all of it at once
    order = RankOrder.from_json(order_json)
    _redirect_output(order)
    faulthandler.enable()
    show_stacks_when_asked()
    os.environ.update(order.environment, **place_of(order))
    sys.path[:0] = [entry for entry in order.sys_path if entry not in sys.path]
    progress = BoardProgress(board)
    keep_board(progress, heed_notice(progress))
    code = run(order, _Speaker(conn), progress)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)  # no tear-down: with a peer gone it could hang, and the agent ends what is left


def place_of(order: RankOrder) -> dict[str, str]:
    """Return what training code everywhere looks for, as its launcher would set it.

    Local ranks are indices of devices, and with a GPU each rank sees its own alone. No MASTER_ADDR: nothing of
    torch.distributed's listens there, the process group is made already.
    """
    has_own_device = order.request.gpus_per_worker > 0
    return {
        "RANK": str(order.rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_RANK": "0" if has_own_device else str(order.local_rank),
        "LOCAL_WORLD_SIZE": "1" if has_own_device else str(order.local_world_size),
    }


def run(order: RankOrder, emit: Callable[[RankMessage], None], progress: Progress) -> int:
    """Join, train, and turn every way to end into a message; returns the exit code."""
    try:
        world = join_world(order)
        result = train(order, world, emit, progress)
    except SystemExit as error:
        code = _exit_code(error)
        emit(failed_by(error, progress, message=f"training code called exit({code}) before the last step"))
        return code
    except BaseException as error:  # noqa: BLE001 -- the root of the rank: told once, with its traceback
        emit(failed_by(error, progress))
        with suppress(OSError):  # the log may lie on the disk whose being full is the error
            _tell_log(error)
        return 1
    emit(result if isinstance(result, Left) else Done(result=result))
    return 0


def _tell_log(error: BaseException) -> None:
    """Leave the traceback in this rank's log; one line where this rank only ended because another one did."""
    if is_echo(type(error).__name__, str(error)):
        reason = str(error).partition("\n")[0]
        sys.stderr.write(f"shardyard: ended because another rank did ({type(error).__name__}: {reason})\n")
    else:
        traceback.print_exception(error)


def failed_by(error: BaseException, progress: Progress, message: str | None = None) -> Failed:
    """Say how `error` ended this rank, and whose fault it was."""
    return Failed(
        failure_class=classify(error),
        error_type=type(error).__name__,
        message=str(error) if message is None else message,
        traceback="".join(traceback.format_exception(error)),
        phase=progress.phase,
        step=progress.step,
        culprit=getattr(error, "checkpoint", "") if isinstance(error, errors.DamagedCheckpointError) else "",
    )


def classify(error: BaseException) -> FailureClass:
    """Whose fault an exception is. What is not ours is the user's; a lost peer's errors are told apart by `fold`."""
    for error_class, failure_class in _CLASSES:
        if isinstance(error, error_class):
            return failure_class
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator: can't allocate memory" in text:
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.USER_CODE


class _Speaker:
    """Sends messages to the agent, whole, from any thread. An agent that is gone is not our error to tell."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._lock = threading.Lock()
        self._imported = set(sys.modules)

    def __call__(self, message: RankMessage) -> None:
        with self._lock:
            self._conn.send_bytes(message.to_json().encode())
            if isinstance(message, Measured) and self._imported:
                self._tell_late_imports()

    def _tell_late_imports(self) -> None:
        """Once, after the first step: what the forkserver should have imported (see `agent.preload`)."""
        late = sorted(set(sys.modules) - self._imported)
        self._imported = set()
        if TRACE_IMPORTS in os.environ:
            sys.stderr.write(f"shardyard: {len(late)} modules were imported in this rank: {' '.join(late)}\n")


def _redirect_output(order: RankOrder) -> None:
    """Make this rank's log the standard output and error of the process, before anything prints.

    Bytes go through as they are, unbuffered: a SIGKILL loses nothing, and a progress bar without newlines shows.
    """
    path = log_path(order)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = _unbuffered(1)
    sys.stderr = _unbuffered(2)


def log_path(order: RankOrder) -> Path:
    """Where this rank's output goes."""
    return rank_log(
        order.request.run_dir,
        generation=order.request.generation,
        attempt=order.round.attempt,
        round_=order.round.round,
        rank=order.rank,
    )


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        raw, encoding="utf-8", errors="backslashreplace", write_through=True
    )  # raw, as `python -u` does


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
