"""What agents and their driver tell each other through the relay: one JSON line each, which the relay never reads."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from workers.contract.base import Message
from workers.contract.failure import FailureClass, RankEnding
from workers.contract.launch import RoundOrder
from workers.contract.rank_messages import Done, Left, Measured, Ready, Told
from workers.progress import Phase


class Seated(Message):
    """An agent's process runs and begins to import what its ranks will need."""

    type: Literal["seated"] = "seated"
    rank: int
    node: str


class Registered(Message):
    """An agent stands ready to fork its rank, or says by `problem` why it never will."""

    type: Literal["registered"] = "registered"
    rank: int
    node: str  # the address of its Ray node
    node_id: str
    pid: int
    store_address: str | None = None  # of the agent of rank 0: where ranks meet
    problem: str = ""
    problem_class: FailureClass | None = None
    seconds: float = 0.0  # until its forkserver was warm
    cold_modules: tuple[str, ...] = ()  # what should be imported beforehand and is not: ranks start slower


class StoreMoved(Message):
    """The rendezvous store died and was started again elsewhere; running ranks do not need it."""

    type: Literal["store_moved"] = "store_moved"
    rank: int
    store_address: str


class Started(Message):
    """The rank process of a round is forked."""

    type: Literal["started"] = "started"
    rank: int
    round: int
    pid: int


class Said(Message):
    """What a rank said, passed on."""

    type: Literal["said"] = "said"
    rank: int
    round: int
    message: Annotated[Ready | Measured | Told | Done | Left, Field(discriminator="type")]


class Stalled(Message):
    """A rank lives but has not moved for `seconds`. Told again every few seconds until it moves."""

    type: Literal["stalled"] = "stalled"
    rank: int
    round: int
    seconds: float
    phase: Phase
    step: int | None
    usual_step_seconds: float  # 0: not known yet
    collectives: int  # issued so far
    process_state: str  # the kernel's letter: R, S, D, T (stopped), t (traced), Z


class Noticed(Message):
    """A rank was told to leave (SIGTERM): its node or its process is about to go."""

    type: Literal["noticed"] = "noticed"
    rank: int
    round: int


class Holds(Message):
    """A rank trains the step after `step` at the most, and begins no other before it is told to."""

    type: Literal["holds"] = "holds"
    rank: int
    round: int
    step: int  # finished; -1: it has not begun its first one


class Ended(Message):
    """The rank process is gone, and everything it started with it."""

    type: Literal["ended"] = "ended"
    rank: int
    round: int
    ending: RankEnding


AgentMessage = Annotated[
    Seated | Registered | StoreMoved | Started | Said | Stalled | Noticed | Holds | Ended,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[
    Seated | Registered | StoreMoved | Started | Said | Stalled | Noticed | Holds | Ended
] = TypeAdapter(AgentMessage)


def parse_agent_message(
    line: str,
) -> Seated | Registered | StoreMoved | Started | Said | Stalled | Noticed | Holds | Ended:
    """Parse one line; raises ValidationError on anything that no agent of this version sends."""
    return _ADAPTER.validate_json(line)


class Standing(Message):
    """The relay's answer to an agent: the order in force and how long the driver has been silent."""

    version: int  # of the order; 0: none yet
    order: RoundOrder | None
    driver_silent_seconds: float
