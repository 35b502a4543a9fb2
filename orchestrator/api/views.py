"""What the API answers, as values: rendered by the routes, parsed again by `orchestrator.client`.

Knows pydantic and the contract only, so that a client starts without a web framework or a database.
Every time is UTC with its offset. A client ignores keys that a newer service adds.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field

from workers.contract.base import Message, Strict
from workers.contract.events import Event, JobResult, Sample
from workers.contract.failure import Verdict
from workers.contract.restart import Counters
from workers.contract.stored import StoredCheckpoint

API_PREFIX: Final = "/api/v1"
# An id or a name; both are made of these, so nothing else reaches a URL, the store or a path.
REFERENCE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$"
REFERENCE_AT_PATTERN: Final = (
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}(@[A-Za-z0-9.-]+)?$"  # and a step or checkpoint of it
)
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
WAIT_LIMIT_SECONDS: Final = 30.0  # the longest that one request for events waits for a new one
PAGE_LIMIT: Final = 1000  # rows that one answer holds at most
LOG_LIMIT_BYTES: Final = 1 << 20  # bytes of a log that one answer holds at most

State = Literal[
    "queued",
    "starting",
    "running",
    "recovering",
    "draining",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
]
TERMINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled"})


class ProblemView(Message):
    """One thing that is wrong with a spec; `text` is the whole sentence, place included."""

    text: str
    source: str = ""
    path: str = ""
    line: int | None = None
    column: int | None = None
    value: str = ""
    rule: str = ""
    remedy: str = ""


class ErrorView(Message):
    """The body of every answer that is not a success (RFC 9457, `application/problem+json`)."""

    title: str
    status: int
    detail: str = ""
    problems: Sequence[ProblemView] = ()


class SubmitBody(Strict):
    """A job file as text, so that line numbers in problems are the user's own. `source` is its name in messages."""

    spec: str
    overrides: Sequence[str] = ()  # `a.b=c`, the value read as YAML
    source: str = "job.yaml"
    # `JOB` or `JOB@STEP`: begin with that job's checkpoint
    resume_from: Annotated[str, Field(pattern=REFERENCE_AT_PATTERN, max_length=160)] | None = None


class WishBody(Strict):
    """Who asks and why, for the timeline."""

    reason: Annotated[str, Field(max_length=500)] = ""
    by: Annotated[str, Field(max_length=100)] = ""


class ValidView(Message):
    """A spec that would be accepted, every default filled in."""

    name: str
    spec: Mapping[str, Any]
    digest: str


class JobView(Message):
    """A job as it stands."""

    id: str
    name: str
    state: State
    reason: str  # why it is in this state: what it waits for, how it ended
    desired: Literal["run", "pause", "cancel"]
    generation: int
    world_size: int
    step: int  # finished optimizer steps on the surviving lineage
    target_steps: int
    counters: Counters
    created_at: AwareDatetime
    updated_at: AwareDatetime
    started_at: AwareDatetime | None = None
    finished_at: AwareDatetime | None = None
    verdict: Verdict | None = None
    result: JobResult | None = None
    run_dir: str = ""  # logs, events and samples
    storage: str = ""  # the path or URL where its checkpoints lie
    queue: str = "default"
    priority: int = 0
    version: int = 0
    spec: Mapping[str, Any] = {}  # left empty in lists

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended: nothing changes any more."""
        return self.state in TERMINAL_STATES


class JobPage(Message):
    """Newest first. `next_cursor` says that there are more; it stays valid while jobs come and go."""

    jobs: Sequence[JobView]
    next_cursor: str | None = None


class EventView(Event):
    """An event with its place in the job's whole timeline, over all generations, from 1."""

    cursor: int


class EventPage(Message):
    """Events after a cursor, oldest first. Ask again with `next_after`; `is_complete` says that none will follow."""

    events: Sequence[EventView]
    next_after: int
    is_complete: bool = False


class LossPoint(Message):
    """One point of the loss curve."""

    step: int
    loss: float


class SamplesView(Message):
    """The newest sample of each live rank, and the loss curve, thinned to a bound."""

    latest: Sequence[Sample]
    losses: Sequence[LossPoint] = ()


class LogView(Message):
    """One log file of a job: of one rank process, or of a driver (then `attempt`, `round` and `rank` are None)."""

    generation: int
    attempt: int | None = None
    round: int | None = None
    rank: int | None = None
    size_bytes: int
    modified_at: AwareDatetime

    @property
    def label(self) -> str:
        """How the log is named before its lines."""
        if self.rank is None:
            return f"driver g{self.generation}"
        return f"g{self.generation}.a{self.attempt}.r{self.round} rank {self.rank}"


class LogChunk(Message):
    """Text of [offset, next_offset) bytes. Bytes that are no UTF-8 are replaced; a character cut by the end waits."""

    text: str
    offset: int
    next_offset: int
    size_bytes: int  # of the file now


class CheckpointView(StoredCheckpoint):
    """A published checkpoint."""

    published_at: AwareDatetime | None = None


class NodeView(Message):
    """An alive node of the cluster and what it has in all."""

    id: str
    address: str
    cpus: int
    gpus: int = 0
    is_head: bool = False


class ClusterView(Message):
    """What the controller last saw of Ray."""

    is_reachable: bool
    error: str = ""
    seen_at: AwareDatetime | None = None
    nodes: Sequence[NodeView] = ()
    held_cpus: int = 0
    held_gpus: int = 0


class TargetGroup(Message):
    """One entry of Prometheus' HTTP service discovery."""

    targets: Sequence[str]
    labels: Mapping[str, str]


class HealthView(Message):
    """The service lives. Says nothing of jobs: it needs no token."""

    status: Literal["ok"] = "ok"
    version: str
