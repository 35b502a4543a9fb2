"""Where the agent meets Ray: Ray Train's per-worker function, and the relay as a mailbox."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import ray
import ray.exceptions
import ray.train
import ray.util

from workers.agent.agent import Agent, Seat, Waker, rank_environment
from workers.agent.checks import Problem, check_node
from workers.agent.forkserver import ColdForkserverError, WarmForkserver, hide_main_module
from workers.agent.messages import Registered, Seated, Standing
from workers.agent.network import interface_of
from workers.agent.postbox import MailboxGoneError, Postbox
from workers.agent.preload import preload
from workers.agent.rank_entry import rank_entry
from workers.contract.failure import FailureClass
from workers.contract.launch import LAUNCH_ENV, REPORT_TOKEN_ENV, LaunchRequest, RoundOrder

_CALL_SECONDS: Final = 30.0


class RelayMailbox:
    """A mailbox whose calls go to the relay actor."""

    def __init__(self, relay: Any, rank: int) -> None:
        self._relay = relay
        self._rank = rank

    def tell(self, lines: Sequence[str]) -> None:
        """Hand over lines, in order. Raises MailboxGoneError, OSError."""
        self._call(self._relay.tell.remote(self._rank, list(lines)), _CALL_SECONDS)

    def listen(self, seen: int, wait_seconds: float) -> Standing:
        """Wait for an order newer than `seen`. Raises MailboxGoneError, OSError."""
        answer = self._call(
            self._relay.listen.remote(self._rank, seen, wait_seconds), wait_seconds + _CALL_SECONDS
        )
        number, order, silent = answer
        return Standing(
            version=number,
            order=RoundOrder.from_json(order) if order is not None else None,
            driver_silent_seconds=silent,
        )

    def _call(self, reference: Any, seconds: float) -> Any:
        try:
            return ray.get(reference, timeout=seconds)
        except ray.exceptions.ActorDiedError as error:
            raise MailboxGoneError(str(error)) from error
        except ray.exceptions.RayError as error:
            raise OSError(f"the relay does not answer: {type(error).__name__}") from error


def agent_main(config: Mapping[str, Any]) -> None:
    """Run the agent of one Ray Train worker. `config` holds the launch request as JSON and the relay's handle."""
    request = LaunchRequest.from_json(config["request"])
    for name in (LAUNCH_ENV, REPORT_TOKEN_ENV):  # not for ranks: they run the user's code
        os.environ.pop(name, None)
    hide_main_module()
    seat = _take_seat(request)
    waker = Waker()
    postbox = Postbox(
        RelayMailbox(config["relay"], seat.rank), lease_seconds=request.lease_seconds, wake=waker.ring
    )
    postbox.start()
    postbox.tell(Seated(rank=seat.rank, node=seat.node), at_once=True)
    try:
        problem = check_node(request, installed_version=_installed_version())
        if problem is None:
            problem = _run(request, seat, postbox, waker)
        if problem is not None:
            postbox.tell(_unfit(seat, problem), at_once=True)
    finally:
        postbox.close()


def _installed_version() -> str:
    try:
        return version("shardyard")
    except PackageNotFoundError:
        return "of no version (its metadata is missing)"


def _run(request: LaunchRequest, seat: Seat, postbox: Postbox, waker: Waker) -> Problem | None:
    try:
        server = WarmForkserver(
            rank_environment(request),
            preloaded=preload(request.config.engine.kind, request.config.model),
            scratch=request.config.engine.offload.nvme_path,
            seconds=request.start_seconds,
        )
    except ColdForkserverError as error:
        return FailureClass.INTERNAL, f"its forkserver did not start: {error}"
    Agent(
        request=request, seat=seat, server=server, postbox=postbox, waker=waker, rank_target=rank_entry
    ).run()
    return None


def _unfit(seat: Seat, problem: Problem) -> Registered:
    failure_class, text = problem
    return Registered(
        rank=seat.rank,
        node=seat.node,
        node_id=seat.node_id,
        pid=os.getpid(),
        problem=text,
        problem_class=failure_class,
    )


def _take_seat(request: LaunchRequest) -> Seat:
    context = ray.train.get_context()
    node = ray.util.get_node_ip_address()
    return Seat(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        local_world_size=context.get_local_world_size(),
        node=node,
        node_id=ray.get_runtime_context().get_node_id(),
        device="cuda:0" if request.gpus_per_worker else "cpu",  # Ray shows each worker only its own
        network_interface=interface_of(node),
        sys_path=_user_path(request),
    )


def _user_path(request: LaunchRequest) -> tuple[str, ...]:
    """Where the user's code lies on this node: the shipped copy, which is the working directory, else the path itself."""
    if request.config.runtime.working_dir is None:
        return ()
    if ray.get_runtime_context().runtime_env.get("working_dir"):
        return (os.getcwd(),)  # noqa: PTH109 -- the text is what sys.path takes
    return (request.config.runtime.working_dir,)
