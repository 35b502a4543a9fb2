"""One Ray Train worker group and its relay: started, spoken to, and its end told. Knows Ray, decides nothing."""

import logging
import os
import re
import threading
from collections.abc import Callable
from typing import Any, Final

import ray
import ray.exceptions
from ray._raylet import PlacementGroupID
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.agent.messages import parse_agent_message
from workers.agent.ray_worker import agent_main
from workers.contract.launch import LaunchRequest, RoundOrder
from workers.driver.effects import AgentSaid, AttemptEnded, Heard, Input, NodeLeaves, Placed
from workers.driver.relay import Mailbox

_TAKE_SECONDS: Final = 1.0  # also the driver's heartbeat
_CALL_SECONDS: Final = 30.0
_STARTUP_TIMEOUT: Final = re.compile(
    r"StartupTimeout|startup timed out"
)  # Ray Train's error, or its words in another
_WATCH_SECONDS: Final = 1.0

log = logging.getLogger(__name__)

# Ray Train's defaults that do not suit us: it polls workers every 2 s, moves them to a directory of its own, and
# watches for preemption and metrics with actors of its own.
_TRAIN_ENVIRONMENT: Final = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


class _Trainer(DataParallelTrainer):  # type: ignore[misc]  # Ray's classes have no types for us
    """Without Ray Train's placement group cleaner: in 2.60 that detached actor cannot leave after its controller died.

    It calls `exit_actor` from a thread, which Ray refuses, and stays for ever. What it is for, we do ourselves:
    Ray removes a job's reservations with the job, and `_release_reservations` those of an attempt whose controller was killed.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        return [c for c in callbacks if not isinstance(c, PlacementGroupCleanerCallback)]


class Attempt:
    """A worker group, from `start` until `AttemptEnded` comes through `put`."""

    def __init__(self, *, request: LaunchRequest, number: int, put: Callable[[Input], None]) -> None:
        self._request = request
        self._number = number
        self._put = put
        self._over = threading.Event()
        self._is_left = False
        self._listeners = [
            threading.Thread(target=target, name=f"attempt-{number}-{target.__name__}", daemon=True)
            for target in (self._take, self._watch)
        ]
        self._node_ids: set[str] = set()
        self._relay: Any = (
            ray.remote(Mailbox)
            .options(
                num_cpus=0,
                max_concurrency=2 * request.world_size + 16,  # each agent listens and tells
                scheduling_strategy=NodeAffinitySchedulingStrategy(
                    ray.get_runtime_context().get_node_id(), soft=True
                ),
            )
            .remote()
        )

    def start(self) -> None:
        """Ask Ray Train for the workers and begin to take what they say. Returns at once."""
        os.environ.update(_TRAIN_ENVIRONMENT)
        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(self._request.placement_seconds)
        threading.Thread(target=self._fit, name=f"attempt-{self._number}", daemon=True).start()
        for listener in self._listeners:
            listener.start()

    def post(self, order: RoundOrder) -> None:
        """Put an order in force. A relay that is gone shows as the attempt's end."""
        try:
            ray.get(self._relay.post.remote(order.to_json()), timeout=_CALL_SECONDS)
        except ray.exceptions.RayError:
            return

    def leave(self) -> None:
        """Ask Ray for nothing more: this process is about to leave it, and Ray ends one that asks it afterwards."""
        self._is_left = True
        self._over.set()
        for listener in self._listeners:
            listener.join(timeout=_CALL_SECONDS)

    def _fit(self) -> None:
        error, rank, not_placed = "", None, False
        try:
            self._trainer().fit()
        except WorkerGroupError as failure:
            rank = min(failure.worker_failures, default=None)
            error = _first_line(failure.worker_failures[rank] if rank is not None else failure)
        except Exception as failure:  # noqa: BLE001 -- Ray Train raises many kinds; each ends the attempt
            error = _first_line(failure)
            not_placed = _STARTUP_TIMEOUT.search(f"{failure!r} {failure}") is not None
            if self._is_left:
                return
            _release_reservations()
        ended = AttemptEnded(
            attempt=self._number,
            error=error,
            rank=rank,
            not_placed=not_placed,
            nodes_alive=self._nodes_alive(),
        )
        self._over.set()
        ray.kill(self._relay)
        self._put(ended)  # the last: who hears it may leave Ray

    def _trainer(self) -> _Trainer:
        request = self._request
        scaling = request.config.scaling
        resources = {"CPU": scaling.cpus_per_worker}
        if request.gpus_per_worker:
            resources["GPU"] = request.gpus_per_worker
        return _Trainer(
            agent_main,
            train_loop_config={"request": request.to_json(), "relay": self._relay},
            scaling_config=ScalingConfig(
                num_workers=request.world_size,
                use_gpu=bool(request.gpus_per_worker),
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                name=f"g{request.generation}.a{self._number}",
                storage_path=f"{request.run_dir}/ray",
                failure_config=FailureConfig(
                    max_failures=0, controller_failure_limit=0, max_preemption_failures=0
                ),
            ),
        )

    def _take(self) -> None:
        while not self._over.is_set():
            try:
                lines, silent = ray.get(self._relay.take.remote(_TAKE_SECONDS), timeout=_CALL_SECONDS)
            except ray.exceptions.ActorDiedError:
                if not self._over.is_set():
                    self._put(AttemptEnded(attempt=self._number, error="the relay died"))
                return
            except ray.exceptions.RayError:
                continue
            for line in lines:
                message = parse_agent_message(line)
                if message.type == "registered":
                    self._node_ids.add(message.node_id)
                self._put(AgentSaid(attempt=self._number, message=message))
            self._put(Heard(attempt=self._number, silent_seconds=silent))

    def _watch(self) -> None:
        """Tell when there is room, and which nodes are to go. A control store that is away may hold this thread up."""
        is_placed, draining = False, set[str]()
        while not self._over.wait(_WATCH_SECONDS):
            try:
                is_new = not is_placed and _has_room()
                leaving = _draining_nodes() & self._node_ids - draining
            except Exception as error:  # noqa: BLE001 -- whatever it is, Ray did not answer, and is asked again
                log.warning("Ray does not tell of rooms and nodes: %s", error)
                continue
            if is_new:
                is_placed = True
                self._put(Placed(attempt=self._number))
            for node_id in sorted(leaving):
                draining.add(node_id)
                self._put(NodeLeaves(attempt=self._number, node_id=node_id))

    def _nodes_alive(self) -> bool:
        """Whether Ray says that every node of the attempt lives; then a dead agent is dead for certain."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return self._node_ids <= alive


def _draining_nodes() -> set[str]:
    """Return the ids of the nodes that Ray is told to give up soon. Private, as in Ray 2.60; Ray Train asks the same."""
    return set(ray._private.state.state.get_draining_nodes())


def _has_room() -> bool:
    """Whether Ray has set the attempt's room aside. A few milliseconds."""
    return "CREATED" in _reservations().values()


def _reservations() -> dict[str, str]:
    """Return the state of each placement group of this driver's Ray job that is not removed, by its id."""
    job_id = ray.get_runtime_context().get_job_id()  # the last digits of the ids of what it makes
    table = placement_group_table()
    return {
        group: row["state"]
        for group, row in table.items()
        if group.endswith(job_id) and row["state"] != "REMOVED"
    }


def _release_reservations() -> None:
    """Remove the placement groups of a controller that was killed: Ray keeps them until the whole job is over."""
    for group in _reservations():
        remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group)))


def _first_line(error: BaseException) -> str:
    """The last non-empty line of Ray's long message: it holds the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
