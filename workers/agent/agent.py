"""The agent: obeys round orders, forks and ends its rank, passes on what the rank says. Knows neither Ray nor torch.

One loop on one thread. It is woken by the rank's sentinel, the store's sentinel, and a pipe that the reader and
postbox threads write to; every turn looks at everything anew, so no wake-up can be lost or come in a wrong order.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Final

from workers.agent.forkserver import WarmForkserver
from workers.agent.messages import Ended, Holds, Noticed, Registered, Said, Started, StoreMoved
from workers.agent.postbox import Postbox
from workers.agent.rank_process import RankProcess
from workers.agent.store import Store
from workers.contract.launch import LaunchRequest, Leave, RankOrder, RoundOrder
from workers.contract.rank_messages import Measured

_LOOK_SECONDS: Final = 1.0  # at the latest: the lease is looked at
_STALL_TOLD_SECONDS: Final = 2.0  # at most so often
_EXIT_SECONDS: Final = 0.25  # for a rank that said `Failed` or `Done` to leave with its own exit code


class LeaseLostError(Exception):
    """The driver was silent for a whole lease: another generation may be about to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """This agent's place in the attempt."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int  # agents of the attempt on this node
    node: str  # address
    node_id: str
    device: str
    network_interface: str
    sys_path: tuple[str, ...]


class Waker:
    """A pipe that any thread may ring."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self._write_end, False)

    def ring(self) -> None:
        """Wake the loop."""
        try:
            os.write(self._write_end, b"x")
        except BlockingIOError:
            return  # full: it is awake already

    def quiet(self) -> None:
        """Take all rings."""
        try:
            while os.read(self.read_end, 4096):
                pass
        except BlockingIOError:
            return


class Agent:
    """Runs one attempt on one seat. `server` is warm; `rank_target` is what a rank process runs."""

    def __init__(
        self,
        *,
        request: LaunchRequest,
        seat: Seat,
        server: WarmForkserver,
        postbox: Postbox,
        waker: Waker,
        rank_target: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._seat = seat
        self._server = server
        self._postbox = postbox
        self._waker = waker
        self._rank_target = rank_target
        self._clock = clock
        self._store: Store | None = None
        self._rank: RankProcess | None = None
        self._rank_is_proven = False
        self._obeyed = 0
        self._begun = -1  # the newest round whose rank was started
        self._has_noticed = False
        self._stall_told_at = float("-inf")

    def run(self) -> None:
        """Register, then obey until `stop`. Raises LeaseLostError. Leaves no process behind, however it ends."""
        with ExitStack() as stack:
            stack.callback(self._server.stop)
            if self._seat.rank == 0:
                self._store = Store(self._server, self._seat.node)
            self._register()
            while self._turn():
                pass
            self._end_rank(ordered=True)

    def _register(self) -> None:
        self._postbox.tell(
            Registered(
                rank=self._seat.rank,
                node=self._seat.node,
                node_id=self._seat.node_id,
                pid=os.getpid(),
                store_address=self._store.address if self._store else None,
                seconds=self._server.seconds,
                cold_modules=self._server.cold_modules,
            ),
            at_once=True,
        )

    def _turn(self) -> bool:
        """Wait for something, then look at everything; False when the attempt is over."""
        sentinels = [self._waker.read_end]
        if self._rank is not None:
            sentinels.append(self._rank.sentinel)
        if self._store is not None:
            sentinels.append(self._store.process.sentinel)
        wait(sentinels, timeout=_LOOK_SECONDS)
        self._waker.quiet()
        self._hear_rank()
        self._watch_rank()
        self._keep_store()
        if self._postbox.gone.is_set() or self._clock() >= self._postbox.lease_ends_at:
            self._end_rank(ordered=True)
            raise LeaseLostError(
                f"no word of the driver for {self._request.lease_seconds:g} s, or its relay is gone"
            )
        version, order = self._postbox.order
        if order is None or version <= self._obeyed:
            return True
        self._obeyed = version
        return self._obey(order)

    def _obey(self, order: RoundOrder) -> bool:
        if order.action == "stop":
            self._end_rank(ordered=True, grace_seconds=self._request.config.runtime.grace_seconds)
        elif order.action != "run" or order.round != self._begun:
            self._end_rank(ordered=True)
        if order.action == "run" and order.round != self._begun:
            self._begun = order.round
            self._start_rank(order)
        if order.action == "run" and order.leave is not None:
            self._ask_to_leave(order.leave)
        return order.action != "stop"

    def _ask_to_leave(self, leave: Leave) -> None:
        if self._rank is None:
            return  # it has ended, and the driver hears how
        step = self._rank.ask_to_leave(leave.after_step)
        if leave.after_step is None:
            holds = Holds(rank=self._seat.rank, round=self._rank.order.round.round, step=step)
            self._postbox.tell(holds, at_once=True)

    def _start_rank(self, order: RoundOrder) -> None:
        rank_order = RankOrder(
            request=self._request,
            round=order,
            rank=self._seat.rank,
            world_size=self._seat.world_size,
            local_rank=self._seat.local_rank,
            local_world_size=self._seat.local_world_size,
            node=self._seat.node,
            device=self._seat.device,
            network_interface=self._seat.network_interface,
            environment=self._request.config.runtime.env,
            sys_path=self._seat.sys_path,
        )
        self._rank = RankProcess(self._server, self._rank_target, rank_order, self._waker.ring, self._clock)
        self._rank_is_proven = self._has_noticed = False
        self._postbox.tell(Started(rank=self._seat.rank, round=order.round, pid=self._rank.pid), at_once=True)

    def _hear_rank(self) -> None:
        rank = self._rank
        if rank is None:
            return
        self._pass_on(rank)
        if rank.failed is not None or rank.done is not None:
            wait([rank.sentinel], timeout=_EXIT_SECONDS)
            self._end_rank(ordered=rank.done is not None)
        elif rank.is_gone:
            self._end_rank(ordered=False)

    def _watch_rank(self) -> None:
        """Tell the driver that the rank was told to leave, and that it stands still, again while it does."""
        if self._rank is not None and not self._has_noticed and self._rank.is_told_to_leave:
            self._has_noticed = True
            noticed = Noticed(rank=self._seat.rank, round=self._rank.order.round.round)
            self._postbox.tell(noticed, at_once=True)
        stall = self._rank.stall() if self._rank is not None else None
        if stall is not None and self._clock() >= self._stall_told_at + _STALL_TOLD_SECONDS:
            self._stall_told_at = self._clock()
            self._postbox.tell(stall, at_once=True)

    def _pass_on(self, rank: RankProcess) -> None:
        for message in rank.take():
            is_routine = isinstance(message, Measured) and self._rank_is_proven
            self._rank_is_proven = self._rank_is_proven or isinstance(message, Measured)
            self._postbox.tell(
                Said(rank=self._seat.rank, round=rank.order.round.round, message=message),
                at_once=not is_routine,
            )

    def _end_rank(self, *, ordered: bool, grace_seconds: float = 0.0) -> None:
        """End the rank if there is one, with everything that descends from it, and say how it ended.

        How it leaves within its grace is what it was asked for, and no failure.
        """
        rank, self._rank = self._rank, None
        if rank is None:
            return
        was_asked = rank.failed is None and rank.ask_to_end(grace_seconds)
        rank.end(spare=(self._store.pid,) if self._store is not None else ())
        self._pass_on(rank)
        self._postbox.tell(
            Ended(
                rank=self._seat.rank,
                round=rank.order.round.round,
                ending=rank.ending(ordered=ordered and (was_asked or rank.failed is None)),
            ),
            at_once=True,
        )

    def _keep_store(self) -> None:
        """Start the store again where it died: the round in work does not need it, the next one does."""
        if self._store is None or self._store.process.is_alive():
            return
        self._store = Store(self._server, self._seat.node)
        self._postbox.tell(StoreMoved(rank=self._seat.rank, store_address=self._store.address), at_once=True)


def rank_environment(request: LaunchRequest) -> Mapping[str, str]:
    """What must be set before the forkserver starts, since libraries read it when they are loaded."""
    scaling = request.config.scaling
    environment = {"OMP_NUM_THREADS": str(scaling.threads_per_worker or scaling.cpus_per_worker)}
    if request.gpus_per_worker == 0:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if request.config.engine.kind == "deepspeed":  # it would look for devices itself
        environment["DS_ACCELERATOR"] = "cuda" if request.gpus_per_worker else "cpu"
    return {**environment, **request.config.runtime.env}
