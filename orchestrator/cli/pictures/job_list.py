"""Tables of jobs and of checkpoints."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from orchestrator.api.views import CheckpointView, JobView
from orchestrator.cli.pictures.style import columns, state_text
from orchestrator.cli.wording import age_text, bytes_text, clock_text, count_text, harmless

HEADINGS: Final = ("NAME", "STATE", "STEP", "WORKERS", "AGE", "ID")
RIGHT: Final = frozenset({"STEP", "WORKERS", "AGE"})


def job_table(jobs: Sequence[JobView], *, now: datetime) -> Group:
    """One line a job, newest first. Below it the reason, where it tells more than the state does."""
    rows = [_cells(job, now) for job in jobs]
    widths = [
        max([len(heading), *(row[place].cell_len for row in rows)]) for place, heading in enumerate(HEADINGS)
    ]
    lines = [_line([Text(heading, style="dim") for heading in HEADINGS], widths)]
    for job, row in zip(jobs, rows, strict=True):
        lines.append(_line(row, widths))
        if job.reason and job.state not in ("running", "succeeded"):
            reason = Text(harmless(job.reason), style="dim", no_wrap=True, overflow="ellipsis")
            lines.append(Text.assemble("  ", reason, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _cells(job: JobView, now: datetime) -> list[Text]:
    return [
        Text(job.name, style="bold"),
        state_text(job.state),
        Text(f"{count_text(job.step)}/{count_text(job.target_steps)}"),
        Text(str(job.world_size or "-")),
        Text(age_text((now - job.created_at).total_seconds())),
        Text(job.id, style="dim"),
    ]


def _line(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for cell, width, heading in zip(cells, widths, HEADINGS, strict=True):
        space = " " * (width - cell.cell_len)
        line.append(space if heading in RIGHT else "").append_text(cell)
        line.append("  " if heading in RIGHT else space + "  ")
    line.rstrip()
    return line


def checkpoint_table(checkpoints: Sequence[CheckpointView]) -> Table:
    """Published checkpoints, newest first."""
    marks = [_mark(checkpoint) for checkpoint in checkpoints]
    headings = ["STEP", "SIZE", "TOKENS SEEN", "BY", "PUBLISHED", "NAME", *([""] if any(marks) else [])]
    table = columns(*headings, right=["STEP", "SIZE", "TOKENS SEEN"])
    for checkpoint, mark in zip(checkpoints, marks, strict=True):
        table.add_row(
            count_text(checkpoint.step),
            bytes_text(checkpoint.total_bytes),
            count_text(checkpoint.tokens_seen),
            f"{checkpoint.world_size} ranks" if checkpoint.world_size != 1 else "1 rank",
            clock_text(checkpoint.published_at) if checkpoint.published_at else "-",
            Text(checkpoint.name, style="dim"),
            *([mark] if any(marks) else []),
        )
    return table


def _mark(checkpoint: CheckpointView) -> Text:
    """Say what is special about it: damaged, or kept by somebody."""
    if checkpoint.problem:
        return Text("damaged", style="red")
    jobs = [holder.removeprefix("job-") for holder in checkpoint.holders if holder.startswith("job-")]
    words = ["pinned"] * checkpoint.is_pinned + [f"held by {job}" for job in jobs]
    return Text(", ".join(words), style="yellow")
