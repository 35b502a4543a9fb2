"""What can happen to a job: the inputs of `transition`."""

from dataclasses import dataclass

from orchestrator.gang import Gang
from workers.contract.failure import Verdict
from workers.contract.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Admission gave the job a place."""

    gang: Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What the job waits for: admission, or Ray's taking it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Ray took the generation's job."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The driver's word, with its events taken off."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The generation's Ray job is over, and its driver has not said how."""

    generation: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The generation's Ray job is over and holds nothing any more."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """A person wants the job's end."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested:
    """A person wants it to save and leave the cluster for a while."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """A person wants a paused job to go on."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequested:
    """A person wants a job that failed or was cancelled to be tried again."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The control plane itself failed on this job, again and again."""

    reason: str


Input = (
    Granted
    | Waits
    | Submitted
    | Reported
    | Lost
    | Released
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | RetryRequested
    | Broken
)
