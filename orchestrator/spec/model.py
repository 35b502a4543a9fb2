"""`JobSpec`: a job file once it is understood. Defaults of the training part live in `workers.contract.config`."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field

from workers.contract.base import Strict
from workers.contract.config import TrainingConfig

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"  # a DNS label (RFC 1123)
JobName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]


class Queue(Strict):
    """Where the job waits. One queue, first come, first served."""

    name: Literal["default"] = "default"
    priority: Literal[0] = 0
    preemptible: Literal[False] = False


class JobSpec(TrainingConfig):
    """A whole job file."""

    name: JobName = "job"
    queue: Queue = Queue()

    def training(self) -> TrainingConfig:
        """The part that ranks need: everything but name and queue."""
        return TrainingConfig.model_validate(self.model_dump(exclude={"name", "queue"}))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for files that mean the same."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
