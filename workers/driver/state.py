"""What a driver knows of its generation: frozen values, changed only by `rounds.advance`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from workers.agent.messages import Registered, Stalled
from workers.contract.events import JobResult
from workers.contract.failure import RankEnding, Verdict
from workers.contract.launch import LaunchRequest, RoundOrder
from workers.contract.rank_messages import Left
from workers.contract.report import Phase
from workers.contract.restart import Counters


class Stage(StrEnum):
    """What the driver is waiting for."""

    WAITING = "waiting"  # for time to pass before an attempt: an earlier lease, a back-off
    PLACING = "placing"  # for all agents of the attempt to register
    CHOOSING = "choosing"  # for the checkpoint to resume from
    HOLDING = "holding"  # for a back-off between two rounds
    TRAINING = "training"  # a round is ordered
    CLOSING = "closing"  # for the worker group to end
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the generation ends. `lost`: the driver gives up without a final word; another generation decides."""

    phase: Literal["finished", "failed", "stopped", "drained", "not_placed", "lost"]
    reason: str
    verdict: Verdict | None = None
    result: JobResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """All ranks of a round are leaving together (`workers.driver.drain`)."""

    reason: str
    asked_at: float
    then: Outcome | None  # how the generation ends; None: it goes on with a new attempt
    rank: int | None = None  # who was told to leave, where it is one
    node: str = ""
    holds: Mapping[int, int] = field(default_factory=dict)  # finished steps of each rank that holds
    after_step: int | None = None  # agreed: all leave after it
    left: Mapping[int, Left] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One rendezvous, as far as the agents have told."""

    order: RoundOrder
    resume_step: int
    reached: int  # furthest finished step that was seen
    ordered_at: float
    pids: Mapping[int, int] = field(default_factory=dict)
    ready: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # seconds by part of the start
    stepped: bool = False
    done: Mapping[int, JobResult] = field(default_factory=dict)
    drain: Drain | None = None
    endings: tuple[RankEnding, ...] = ()
    seen_at: tuple[float, ...] = ()  # when each ending arrived
    stalls: Mapping[int, Stalled] = field(
        default_factory=dict
    )  # the newest of each rank that ever stood still
    stalled_at: Mapping[int, float] = field(default_factory=dict)  # when each of them arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All of it. Times are seconds of the driver's monotonic clock."""

    request: LaunchRequest
    stage: Stage
    began_at: float
    until: float | None  # when to look again although nothing arrives
    counters: Counters
    attempt: int = -1
    next_round: int = 0
    is_placed: bool = False  # Ray has set the attempt's room aside
    seats: Mapping[int, str] = field(default_factory=dict)  # the node of each agent that runs
    agents: Mapping[int, Registered] = field(default_factory=dict)  # those that stand ready
    heard_at: Mapping[int, float] = field(default_factory=dict)
    round: Round | None = None
    fault_at: float | None = None  # when the failure that is being recovered from was seen
    damaged: frozenset[str] = frozenset()
    step: int = 0  # finished steps of the lineage in work
    furthest: int = 0  # furthest finished step ever shown
    replayed: int = 0
    after_close: Outcome | float = 0.0  # the end, or the back-off before the next attempt
    outcome: Outcome | None = None

    @property
    def phase(self) -> Phase:
        """The word for the report."""
        if self.outcome is not None and self.outcome.phase != "lost":
            return self.outcome.phase
        if self.round is not None and self.round.stepped and (self.fault_at is None or self._is_undecided):
            return "running"
        is_first = self.attempt <= 0 and self.next_round <= 1
        return "starting" if is_first and (self.fault_at is None or self._is_undecided) else "recovering"

    @property
    def _is_undecided(self) -> bool:
        """A failure was seen, and it is either not judged yet or ends the generation: nothing recovers from it."""
        is_judging = self.stage is Stage.TRAINING and self.round is not None and bool(self.round.endings)
        return is_judging or isinstance(self.after_close, Outcome)

    @property
    def store_address(self) -> str:
        """Where the ranks of the attempt meet; empty until the agent of rank 0 said so."""
        agent = self.agents.get(0)
        return agent.store_address or "" if agent else ""

    @property
    def nodes(self) -> Mapping[int, str]:
        """The node of each rank of the attempt."""
        return {rank: agent.node for rank, agent in self.agents.items()}
