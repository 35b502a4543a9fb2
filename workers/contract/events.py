"""What a job tells about itself: events (a timeline, kept for ever) and samples (numbers, about one a second)."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from workers.contract.base import Message


class EventKind(StrEnum):
    """Every kind of line in a job's timeline. The control plane adds its own state changes as `state`."""

    STATE = "state"  # orchestrator: old -> new, reason
    GRANTED = "granted"  # orchestrator: generation n at world size w
    DRIVER_STARTED = "driver_started"
    ATTEMPT_STARTED = "attempt_started"
    AGENTS_READY = "agents_ready"
    ROUND_STARTED = "round_started"  # data: pids by rank, nodes by rank, resume_from
    DATA_OPENED = "data_opened"  # data: samples, held_out, dropped_tokens, bad_rows, first_bad_rows
    FIRST_STEP = "first_step"  # data: seconds since the fault and since the round began
    CHECKPOINT_PUBLISHED = "checkpoint_published"  # data: checkpoint, bytes, stall_seconds, write_seconds
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    CHECKPOINT_DELETED = "checkpoint_deleted"
    EVALUATED = "evaluated"  # data: loss, tokens
    ROUND_FAILED = "round_failed"  # data: the verdict
    ATTEMPT_FAILED = "attempt_failed"  # data: the verdict
    RESTART = "restart"  # data: action, reason, charged
    NOTE = "note"
    EXPORTED = "exported"  # data: path
    FINISHED = "finished"  # data: the JobResult
    FAILED = "failed"  # data: the verdict
    STOPPED = "stopped"  # the driver obeyed `stop`
    DRAINED = "drained"  # all ranks left together, after a step; data: checkpoint, seconds
    LOGS = "logs"  # data: where this round's logs lie


class Event(Message):
    """One line of the timeline. `sequence` counts up within a generation; the pair names the event for ever."""

    kind: EventKind
    generation: int
    sequence: int
    at: datetime  # UTC, of the writer; for people only, never compared
    message: str
    attempt: int | None = None
    round: int | None = None
    rank: int | None = None
    step: int | None = None
    data: Mapping[str, Any] = {}


class Sample(Message):
    """What one rank measured over the steps since its last sample. Loss and tokens are global (same on all ranks)."""

    rank: int
    step: int  # finished steps
    attempt: int
    round: int
    at: datetime
    loss: float
    learning_rate: float
    grad_norm: float
    validation_loss: float | None = None  # of the newest evaluation on this lineage
    tokens: int  # global, since the last sample
    steps: int  # since the last sample
    step_seconds: float  # mean over these steps
    data_seconds: float = 0.0
    checkpoint_stall_seconds: float = 0.0
    memory_bytes: Mapping[str, int] = {}  # category -> bytes; a category that is not measured is left out
    rss_bytes: int = 0
    first_index: int = 0  # global indices trained since the last sample: [first_index, end_index)
    end_index: int = 0


class JobResult(Message):
    """What a finished job proves. `samples_*` count the surviving lineage against what seed and steps ask for."""

    final_step: int
    loss_first: float
    loss_last: float
    validation_loss: float | None = None
    tokens: int
    samples_repeated: int
    samples_missing: int
    replayed_steps: int
    checkpoint: str
    export_path: str | None = None
    seconds: float = 0.0  # of the last round, its start-up counted in
    tokens_per_second: float | None = None  # of the last round without its first step; None: it had no other
