"""How a job ended, for whoever followed it."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.api.views import JobView, SamplesView
from orchestrator.cli.pictures.job_page import failure_text, loss_curve, restarts_text
from orchestrator.cli.pictures.style import facts, state_text
from orchestrator.cli.wording import count_text, harmless, plural, rate_text, without
from workers.contract.events import JobResult


def result_page(job: JobView, samples: SamplesView) -> RenderableType:
    """State and reason; of a job that succeeded what it made, of one that failed why."""
    head = Text.assemble("\n", (job.name, "bold"), "  ", state_text(job.state))
    parts: list[RenderableType] = [head]
    rows = list(_rows(job, samples))
    if rows:
        parts.append(facts(rows))
    if job.verdict is not None and job.state == "failed":
        parts.append(failure_text(job.verdict))
        parts.append(Text(f"Logs: shardyard logs {job.name}", style="dim"))
    return Group(*parts)


def _rows(job: JobView, samples: SamplesView) -> Iterator[tuple[str, RenderableType]]:
    if job.reason and job.state != "succeeded":
        known = job.verdict.summary if job.verdict is not None else ""
        yield "reason", Text(harmless(without(known, job.reason)))
    yield "step", f"{count_text(job.step)} of {count_text(job.target_steps)}"
    if samples.losses:
        yield "loss", loss_curve(samples)
    if job.result is not None:
        yield from result_facts(job.result)
    yield "restarts", restarts_text(job)


def result_facts(result: JobResult) -> Iterator[tuple[str, RenderableType]]:
    """What a finished job proves."""
    yield "tokens", count_text(result.tokens)
    if result.tokens_per_second is not None:
        yield "speed", f"{rate_text(result.tokens_per_second)} tokens/s"
    if result.validation_loss is not None:
        yield "validation", f"loss {result.validation_loss:.4f} over held-out samples"
    yield "samples", samples_text(result)
    yield "checkpoint", result.checkpoint
    if result.export_path:
        yield "export", result.export_path


def samples_text(result: JobResult) -> str:
    """Say whether each sample was trained exactly once, and how many steps had to be done again."""
    if result.samples_repeated == 0 and result.samples_missing == 0:
        text = "each exactly once"
    else:
        text = f"{count_text(result.samples_repeated)} repeated, {count_text(result.samples_missing)} missing"
    return f"{text}; {plural(result.replayed_steps, 'step')} replayed" if result.replayed_steps else text
