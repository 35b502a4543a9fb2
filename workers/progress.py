"""Where a rank is: kept up to date by the loop, read by whoever has to say where it failed."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["start", "restore", "step", "evaluate", "save", "finish"]


@dataclass(slots=True)
class Progress:
    """Mutable on purpose: one object, written by the loop, read by `rank` after an exception."""

    phase: Phase = "start"
    step: int | None = None  # in work, counted from 1 as people do

    def may_begin(self, step: int) -> bool:
        """Whether the 0-based `step` shall be trained; False: all ranks have agreed to leave before it."""
        return True
