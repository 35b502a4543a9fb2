"""The one exception tree of the control plane, and the record of a user's mistake."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a job file: where it is, what was found, which rule it breaks, what to do."""

    source: str  # the file's name, or the `--set` argument
    line: int | None  # 1-based; None where no line can be named
    column: int | None
    path: str  # dotted key, "" for the whole file
    value: str  # as written, shortened; "" where there is none
    rule: str
    remedy: str = ""

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        subject = f"{self.path}: " if self.path else ""
        found = f"{self.value} " if self.value else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{where}: {subject}{found}{self.rule}{remedy}"


class OrchestratorError(Exception):
    """Root of every error that the control plane raises on purpose."""


class SpecError(OrchestratorError):
    """The job file is refused; `problems` holds at least one entry, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a refusal has a reason"
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class JobNotFoundError(OrchestratorError):
    """No job has this id or name."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"no job has the id or name {reference!r}")
        self.reference = reference


class FileNotServedError(OrchestratorError):
    """A log is asked for by a name that is not one of ours, or that does not exist."""


class CheckpointNotFoundError(OrchestratorError):
    """A job has no published checkpoint of this step or name."""


class StorageUnavailableError(OrchestratorError):
    """The storage of a run does not answer, or not as storage does."""


class IdempotencyConflictError(OrchestratorError):
    """The idempotency key was used before, with another body."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(f"idempotency key {key!r} made job {job_id} from another job file: use a new key")
        self.key = key
        self.job_id = job_id


class NotAuthorizedError(OrchestratorError):
    """The report token is not one of this generation's."""


class StoreError(OrchestratorError):
    """The database cannot be used: locked, gone, or made by another version."""


class StaleVersionError(StoreError):
    """Somebody else changed the job in between: read it again."""
