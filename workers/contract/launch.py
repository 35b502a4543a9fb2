"""What is handed down: orchestrator -> driver (`LaunchRequest`), driver -> agent (`RoundOrder`), agent -> rank (`RankOrder`)."""

from collections.abc import Mapping
from typing import Final, Literal

from workers.contract.base import Message
from workers.contract.config import TrainingConfig
from workers.contract.restart import Counters

LAUNCH_ENV: Final = "SHARDYARD_LAUNCH_REQUEST"  # the LaunchRequest as JSON, in the Ray job's environment
REPORT_TOKEN_ENV: Final = "SHARDYARD_REPORT_TOKEN"  # noqa: S105 -- a name; the token is report-only and dies with the generation
DEFAULT_LEASE_SECONDS: Final = 15.0


class Origin(Message):
    """The checkpoint of another job that this one begins with."""

    job_id: str
    run: str  # path or URL of the storage that it lies on
    checkpoint: str

    def holder(self, fork_id: str) -> str:
        """As whom the fork keeps it, until it has a checkpoint of its own or has ended."""
        return f"job-{fork_id}"


class LaunchRequest(Message):
    """One generation: everything its driver needs to know. Holds no secret."""

    job_id: str
    name: str
    generation: int
    world_size: int
    gpus_per_worker: int  # resolved: `auto` ends here
    config: TrainingConfig
    run_dir: str  # absolute: logs, events and samples
    storage_url: str | None = None  # where checkpoints and fence lie; None: in the run directory
    counters: Counters
    version: str  # of shardyard: nodes that run another one refuse
    report_url: str | None = None  # base URL of the orchestrator; None: nobody listens, files only
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    placement_seconds: float = 120.0  # no room within: the grant goes back
    start_seconds: float = 600.0  # once there is room: for the nodes to build the environment and import
    wait_seconds: float = 0.0  # before the first attempt: what is left of an earlier generation's lease
    resume_from: str | None = None  # a checkpoint's name on this storage; None: the newest published
    origin: Origin | None = None  # of a fork: where to begin as long as nothing of its own is published

    @property
    def storage(self) -> str:
        """The path or URL that every node must see: checkpoints, fence, requests."""
        return self.storage_url or self.run_dir


class Leave(Message):
    """All ranks of a round leave together, in two phases: first each holds and says where it is, then they are told when."""

    after_step: int | None = None  # finished steps; None: hold before the next one


class RoundOrder(Message):
    """One rendezvous, the same for all agents of an attempt."""

    attempt: int
    round: int
    nonce: str  # 8 hex digits, shared by all ranks: part of the names of checkpoints
    resume_from: str | None  # chosen once by the driver; None: from step 0
    resume_run: str | None = (
        None  # of a fork's beginning: the storage where that checkpoint lies; None: the job's own
    )
    store_address: str  # host:port of the rendezvous store, which outlives rounds
    leave: Leave | None = None
    action: Literal["run", "hold", "stop"] = "run"  # hold: no rank for now; stop: the attempt is over


class RankOrder(Message):
    """Everything a forked rank needs: pure data, so that it can be started by hand in a test."""

    request: LaunchRequest
    round: RoundOrder
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int = 1  # ranks of the round on this node
    node: str
    device: str  # "cpu" or "cuda:<index>"
    network_interface: str
    environment: Mapping[str, str] = {}
    sys_path: tuple[str, ...] = ()  # put before the package's own: the user's working_dir
