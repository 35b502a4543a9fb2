"""Driver -> orchestrator over HTTP: at least once, in order, with the desired state in each answer."""

from collections.abc import Sequence
from typing import Literal

from workers.contract.base import Message
from workers.contract.events import Event, JobResult, Sample
from workers.contract.failure import Verdict
from workers.contract.restart import Counters

Phase = Literal["starting", "running", "recovering", "finished", "failed", "stopped", "drained", "not_placed"]


class Report(Message):
    """What happened since the last answer. `phase` is the driver's word on where its generation stands."""

    job_id: str
    generation: int
    phase: Phase
    step: int
    world_size: int
    counters: Counters
    events: Sequence[Event] = ()  # sequence numbers above the last that was acknowledged
    samples: Sequence[Sample] = ()  # newest per rank is enough for whoever shows live state
    verdict: Verdict | None = None  # with `failed`
    result: JobResult | None = None  # with `finished`


class Desired(Message):
    """The answer: what the driver shall be doing. Level-triggered: the same answer until it changes."""

    generation: int  # a driver of an older one stops at once
    action: Literal["run", "drain", "stop"]  # drain: save what is trained, then end
    reason: str = ""
    acknowledged: int = -1  # highest event sequence number that is stored
