"""What the driver's decisions ask of the world, and what the world tells them: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.agent.messages import AgentMessage
from workers.contract.events import EventKind, Sample
from workers.contract.launch import RoundOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Add a line to the timeline."""

    kind: EventKind
    message: str
    attempt: int | None = None
    round: int | None = None
    rank: int | None = None
    step: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Pass a sample on."""

    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Ask Ray Train for a worker group; its agents register, or `AttemptEnded` comes."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choose:
    """Look for the checkpoint to resume from and answer with `Chosen` or `NotChosen`.

    `name` asks for that one; None for the newest published.
    """

    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemn:
    """Take a damaged checkpoint out of the catalog."""

    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Put an order in force for all agents of the attempt."""

    order: RoundOrder


Effect = Say | Forward | StartAttempt | Choose | Condemn | Post


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSaid:
    """A message of an agent of attempt `attempt`."""

    attempt: int
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Signs of life: per rank, how long ago its agent was heard."""

    attempt: int
    silent_seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ray has set the room for every worker of the attempt aside; their processes start now."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """Ray Train's worker group is gone. `error` is empty where it ended in peace.

    `nodes_alive`: Ray says that every node of the attempt lives, so what died is dead for certain.
    """

    attempt: int
    error: str
    rank: int | None = None  # whose agent failed first, where Ray Train says so
    not_placed: bool = False  # it never came to stand: resources did not come in time
    nodes_alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The checkpoint that all ranks resume from; None: step 0. `nonce` names the round's own checkpoints."""

    resume_from: str | None
    run: str | None = None  # the storage where it lies, if not the job's own
    step: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChosen:
    """The checkpoint that was asked for cannot be used."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The orchestrator (or a signal) wants the generation to end. `lost`: the grant is gone, another may run."""

    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaves:
    """Ray says that a node of the attempt is being drained: it goes soon."""

    attempt: int
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAsked:
    """The orchestrator wants the generation to end in order: its ranks save what they have trained first."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Input = (
    AgentSaid
    | Heard
    | Placed
    | AttemptEnded
    | Chosen
    | NotChosen
    | StopAsked
    | NodeLeaves
    | LeaveAsked
    | Tick
)
