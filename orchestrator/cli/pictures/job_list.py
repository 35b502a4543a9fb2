"""Tables of jobs and of checkpoints."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from orchestrator.api.views import CheckpointView, JobView
from orchestrator.cli.pictures.style import columns, state_text
from orchestrator.cli.wording import age_text, bytes_text, clock_text, count_text


def job_table(jobs: Sequence[JobView], *, now: datetime) -> Table:
    """One line a job, newest first; the reason only where it tells more than the state."""
    table = columns("NAME", "STATE", "STEP", "WORKERS", "AGE", "ID", "WHY", right=["STEP", "WORKERS", "AGE"])
    for job in jobs:
        table.add_row(
            Text(job.name, style="bold"),
            state_text(job.state),
            f"{count_text(job.step)}/{count_text(job.target_steps)}",
            str(job.world_size or "-"),
            age_text((now - job.created_at).total_seconds()),
            Text(job.id, style="dim"),
            Text("" if job.state in ("running", "succeeded") else job.reason, style="dim"),
        )
    return table


def checkpoint_table(checkpoints: Sequence[CheckpointView]) -> Table:
    """Published checkpoints, newest first."""
    table = columns(
        "STEP", "SIZE", "TOKENS SEEN", "BY", "PUBLISHED", "NAME", right=["STEP", "SIZE", "TOKENS SEEN"]
    )
    for checkpoint in checkpoints:
        table.add_row(
            count_text(checkpoint.step),
            bytes_text(checkpoint.total_bytes),
            count_text(checkpoint.tokens_seen),
            f"{checkpoint.world_size} ranks" if checkpoint.world_size != 1 else "1 rank",
            clock_text(checkpoint.published_at) if checkpoint.published_at else "-",
            Text(checkpoint.name, style="dim"),
        )
    return table
