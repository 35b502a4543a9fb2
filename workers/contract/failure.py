"""How a rank ended, and the one verdict that N endings fold into."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from workers.contract.base import Message


class FailureClass(StrEnum):
    """Whose fault it was. The class alone decides retry and charge (`restart.decide`)."""

    USER_CODE = "user_code"  # an exception of training code or data: never retried
    CONFIG = "config"  # refused before the first step: 0 trainable parameters, data digest changed
    OUT_OF_MEMORY = "out_of_memory"
    NON_FINITE = "non_finite"
    RANK_LOST = "rank_lost"  # the process vanished: signal, segfault
    AGENT_LOST = "agent_lost"  # the Ray Train worker or its node vanished
    DRIVER_LOST = "driver_lost"
    HANG = "hang"
    RENDEZVOUS = "rendezvous"  # ranks did not meet in time: port taken, refused
    NOT_PLACED = "not_placed"  # Ray found no room in time
    SLOW_START = "slow_start"  # there was room, but the agents did not come up in time
    PREEMPTED = "preempted"
    STORAGE = "storage"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    INTERNAL = "internal"  # our bug


class RankEnding(Message):
    """How one rank's process ended, as its agent saw it. `at` is seconds since the round began, on the agent's clock."""

    rank: int
    node: str
    at: float
    exit_code: int | None = None  # negative: killed by that signal
    failure_class: FailureClass | None = None  # what the rank said itself, if it could
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    phase: str = ""  # start, restore, step, evaluate, save, finish
    step: int | None = None  # in work, counted from 1
    memory_bytes: Mapping[str, int] = {}
    culprit: str = ""  # for CHECKPOINT_DAMAGED: the checkpoint's name
    ordered: bool = False  # killed by its agent because the round was over

    @property
    def signal(self) -> int | None:
        """The signal that killed the process."""
        return -self.exit_code if self.exit_code is not None and self.exit_code < 0 else None


class Verdict(Message):
    """One record per failed round, attempt or generation."""

    failure_class: FailureClass
    summary: str  # one sentence: what happened, to which rank, where
    first_rank: int | None = None
    node: str = ""
    phase: str = ""
    step: int | None = None
    traceback: str = ""
    evidence: Mapping[str, str] = {}
    culprit: str = ""
    consequences: tuple[int, ...] = ()  # ranks whose own errors followed from the first


# An error that a healthy rank gets because another one went away. Never the cause while another candidate exists.
CONSEQUENCE_MARKS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "gloo/transport",
    "nccl",
    "distbackenderror",
    "distnetworkerror",
    "timed out waiting",
)


def is_consequence(ending: RankEnding) -> bool:
    """Whether this error is one that a healthy rank gets because another one went away."""
    return is_echo(ending.error_type, ending.message)


def is_echo(error_type: str, message: str) -> bool:
    """The same of an error alone."""
    text = f"{error_type} {message}".lower()
    return any(mark in text for mark in CONSEQUENCE_MARKS)


def _classify(ending: RankEnding) -> FailureClass:
    if ending.failure_class is not None:
        return ending.failure_class
    if ending.error_type == "MemoryError" or "outofmemory" in ending.error_type.lower():
        return FailureClass.OUT_OF_MEMORY
    if ending.traceback:
        return FailureClass.USER_CODE
    if ending.exit_code is not None and 0 < ending.exit_code < 128:
        return FailureClass.USER_CODE  # sys.exit(7) in training code
    return FailureClass.RANK_LOST


def during(phase: str, step: int | None) -> str:
    """Say in which phase and step something happened: ` in step 7`, ` in save at step 7`, ` in start`, or nothing."""
    if not phase or (phase == "step" and step is not None):
        return "" if step is None else f" in step {step}"
    return f" in {phase}" + ("" if step is None else f" at step {step}")


def _sentence(ending: RankEnding, failure_class: FailureClass) -> str:
    where = f"rank {ending.rank} on {ending.node}"
    if ending.error_type:
        how = f"{ending.error_type}: {ending.message}".strip().rstrip(":")
    elif ending.signal is not None:
        how = f"killed by signal {ending.signal}"
    else:
        how = f"exit code {ending.exit_code}"
    return f"{failure_class.value}: {where}{during(ending.phase, ending.step)}: {how}"


def fold(endings: Sequence[RankEnding]) -> Verdict:
    """Name the first failing rank of a round and set the errors that follow from it aside.

    Endings that the agent ordered are never a cause; network errors are one only where nothing else is there;
    among the rest the earliest is first.
    """
    unordered = [e for e in endings if not e.ordered and (e.exit_code != 0 or e.error_type)]
    if not unordered:
        return Verdict(
            failure_class=FailureClass.INTERNAL, summary="internal: the round ended and no rank says why"
        )
    own = [e for e in unordered if not is_consequence(e)] or unordered
    first = min(own, key=lambda e: (e.at, e.rank))
    failure_class = _classify(first)
    if is_consequence(first):
        failure_class = FailureClass.RENDEZVOUS if first.phase == "start" else FailureClass.RANK_LOST
    return Verdict(
        failure_class=failure_class,
        summary=_sentence(first, failure_class),
        first_rank=first.rank,
        node=first.node,
        phase=first.phase,
        step=first.step,
        traceback=first.traceback,
        culprit=first.culprit,
        evidence={f"rank {e.rank}": _sentence(e, _classify(e)) for e in unordered},
        consequences=tuple(sorted(e.rank for e in unordered if e.rank != first.rank)),
    )
