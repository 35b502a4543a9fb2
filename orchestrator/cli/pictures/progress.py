"""The two lines at the foot of a followed job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.pictures.job_page import speed_of
from orchestrator.cli.pictures.style import bar, state_text
from orchestrator.cli.wording import count_text, harmless, loss_text, rate_text, seconds_text
from workers.contract.events import Sample

INDENT: Final = 12
SEPARATOR: Final = " · "


class Stands(Protocol):
    """What the progress lines need of a job: a JobView has it."""

    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def target_steps(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The same of a job that no service knows."""

    state: str
    reason: str
    step: int
    target_steps: int


def progress(
    job: Stands, samples: Sequence[Sample], *, width: int, elapsed_seconds: float, note: str = ""
) -> RenderableType:
    """State, bar and steps; below it loss and speed, or what the job waits for. `note` stands in place of those."""
    steps = f"{count_text(job.step)} of {count_text(job.target_steps)} steps"
    table = Table.grid(padding=(0, 2, 0, 0))
    share = job.step / job.target_steps if job.target_steps else 0.0
    room = max(10, min(60, width - len(steps) - 16))
    table.add_row(state_text(job.state.ljust(10)), bar(share, room), steps)
    told = note or fitting(_numbers(job, samples, elapsed_seconds), width - INDENT)
    line = Text(told, style="dim")
    line.truncate(max(20, width - INDENT), overflow="ellipsis")
    return Group(Text(""), table, Text.assemble(" " * INDENT, line))


def _numbers(job: Stands, samples: Sequence[Sample], elapsed_seconds: float) -> list[str]:
    """What to tell, the most important first."""
    speed = speed_of(samples)
    elapsed = seconds_text(elapsed_seconds)
    if job.state != "running" or speed is None:
        return [part for part in (harmless(job.reason), elapsed) if part]
    newest = max(samples, key=lambda s: s.step)
    left = (job.target_steps - job.step) * speed[1]
    return [
        f"loss {loss_text(newest.loss)}",
        f"{rate_text(speed[0])} tokens/s",
        f"{seconds_text(left)} left",
        f"{elapsed} so far",
        f"{seconds_text(speed[1])} a step",
    ]


def fitting(parts: Sequence[str], width: int) -> str:
    """Join as many of `parts` as fit, in order; always the first."""
    line = parts[0] if parts else ""
    for part in parts[1:]:
        if len(line) + len(SEPARATOR) + len(part) > width:
            break
        line += SEPARATOR + part
    return line


def progress_line(job: Stands, samples: Sequence[Sample]) -> str:
    """Say the same in one line of a log, for an output that does not redraw."""
    newest = max(samples, key=lambda s: s.step, default=None)
    told = f"{job.state}: step {count_text(job.step)} of {count_text(job.target_steps)}"
    return told if newest is None else f"{told}, loss {loss_text(newest.loss)}"
