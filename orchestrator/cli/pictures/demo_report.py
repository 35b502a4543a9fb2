"""What the demo shows at its end."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from orchestrator.api.views import CheckpointView, JobView, SamplesView
from orchestrator.cli.demo_story import Kill, Story
from orchestrator.cli.pictures.job_list import checkpoint_table
from orchestrator.cli.pictures.job_page import failure_text, loss_curve, training_facts_of
from orchestrator.cli.pictures.memory import memory_table
from orchestrator.cli.pictures.result import samples_text
from orchestrator.cli.pictures.style import facts, heading, state_text
from orchestrator.cli.pictures.timeline import WORD_WIDTH, Mark, timeline
from orchestrator.cli.wording import (
    bytes_text,
    clock_text,
    count_text,
    harmless,
    rate_text,
    seconds_text,
)

TEXT_LINES = 10


def up_line(what: str, where: str, seconds: float | None) -> Text:
    """One thing that is there now."""
    took = "" if seconds is None else seconds_text(seconds)
    return Text.assemble((what.ljust(14), "dim"), where, ("  " + took if took else "", "dim"))


def killed_line(kill: Kill) -> Text:
    """Draw the kill as a line of the stream of events."""
    return Text.assemble(
        (clock_text(kill.at), "dim"),
        "  ",
        ("killed".ljust(WORD_WIDTH), "bold red"),
        "  ",
        _kill_text(kill),
    )


def _kill_text(kill: Kill) -> str:
    return f"SIGKILL to rank {kill.rank}, process {kill.pid}, at about step {kill.step}"


def demo_report(
    story: Story,
    job: JobView,
    samples: SamplesView,
    checkpoints: Sequence[CheckpointView],
    *,
    text: str,
) -> RenderableType:
    """Timeline, memory, checkpoints, generated text, and last the facts a reader came for."""
    mark = None if story.kill is None else Mark(at=story.kill.at, word="killed", text=_kill_text(story.kill))
    shown = timeline(story.events, since=job.created_at, mark=mark)
    parts: list[RenderableType] = [heading("Timeline"), shown]
    memory = memory_table(story.newest())
    if memory is not None:
        parts += [heading("Memory", "bytes that each rank holds, by category"), memory]
    if checkpoints:
        parts += [heading("Checkpoints", "those still kept"), checkpoint_table(checkpoints)]
    if text:
        lines = harmless(text).splitlines()[:TEXT_LINES]
        parts += [heading("What the model writes"), Padding(Text("\n".join(lines)), (0, 0, 0, 2))]
    parts.append(Text.assemble("\n", (job.name, "bold"), "  ", state_text(job.state)))
    parts.append(facts(_facts(story, job, samples)))
    if job.verdict is not None and job.state == "failed":
        parts.append(failure_text(job.verdict))
    return Group(*parts)


def _facts(story: Story, job: JobView, samples: SamplesView) -> Iterator[tuple[str, RenderableType]]:
    if job.state != "succeeded":
        yield "reason", Text(harmless(job.reason))
    yield from training_facts_of(job)
    yield "steps", f"{count_text(job.step)} of {count_text(job.target_steps)}"
    if samples.losses:
        yield "loss", loss_curve(samples)
    if job.result is not None and job.result.tokens_per_second is not None:
        yield "speed", f"{rate_text(job.result.tokens_per_second)} tokens/s"
    if job.result is not None:
        yield "samples", samples_text(job.result)
    yield from _recovery(story)
    if job.result is not None and job.result.export_path:
        yield "export", export_text(Path(job.result.export_path))
    yield "files", job.run_dir


def _recovery(story: Story) -> Iterator[tuple[str, RenderableType]]:
    if story.kill is None:
        yield "kill", "none: the job ended before it came to that"
        return
    resumed = story.resumed_from_step()
    yield "kill", f"rank {story.kill.rank} at about step {story.kill.step}, SIGKILL"
    if resumed is not None:
        yield "resumed", f"from the checkpoint of step {resumed}"
    seconds = story.recovery_seconds()
    if seconds is not None:
        took = f"{seconds_text(seconds)} from the kill to the next optimizer step"
        yield "recovery", Text(took, style="bold green")


def export_text(directory: Path) -> str:
    """Say where an exported model lies, and its files with their sizes."""
    files = sorted(path for path in directory.iterdir() if path.is_file()) if directory.is_dir() else []
    sizes = ", ".join(f"{path.name} {bytes_text(path.stat().st_size)}" for path in files)
    return f"{directory}\n{sizes}" if files else str(directory)
