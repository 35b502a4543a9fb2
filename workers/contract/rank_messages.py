"""Rank -> agent, over a pipe, one JSON line each. The agent passes them on and never waits for them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from workers.contract.base import Message
from workers.contract.events import EventKind, JobResult, Sample
from workers.contract.failure import FailureClass


class Ready(Message):
    """The rank joined its group and restored its state; the next step is `step` (0-based)."""

    type: Literal["ready"] = "ready"
    step: int
    resumed_from: str | None
    seconds: Mapping[str, float]  # rendezvous, build, restore


class Measured(Message):
    """A sample. The first one of a round is sent at once: it proves the first optimizer step."""

    type: Literal["measured"] = "measured"
    sample: Sample


class Told(Message):
    """Something for the timeline: a checkpoint, a note."""

    type: Literal["told"] = "told"
    kind: EventKind
    message: str
    step: int | None = None
    data: Mapping[str, Any] = {}


class Failed(Message):
    """The rank's last words."""

    type: Literal["failed"] = "failed"
    failure_class: FailureClass
    error_type: str
    message: str
    traceback: str
    phase: str
    step: int | None
    culprit: str = ""
    memory_bytes: Mapping[str, int] = {}


class Done(Message):
    """The proof of success: every rank sends one, after the final checkpoint is published."""

    type: Literal["done"] = "done"
    result: JobResult


class Left(Message):
    """The rank left because all ranks had agreed to, after the same step; what was trained is published."""

    type: Literal["left"] = "left"
    step: int  # finished
    checkpoint: str | None  # the newest one; None: nothing was trained yet


RankMessage = Annotated[Ready | Measured | Told | Failed | Done | Left, Field(discriminator="type")]
_ADAPTER: TypeAdapter[Ready | Measured | Told | Failed | Done | Left] = TypeAdapter(RankMessage)


def parse_rank_message(line: bytes) -> Ready | Measured | Told | Failed | Done | Left:
    """Parse one message; raises ValidationError on anything that no rank of this version sends."""
    return _ADAPTER.validate_json(line)
