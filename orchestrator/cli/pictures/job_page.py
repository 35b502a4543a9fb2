"""The page of one job: where it stands, what it is, what went wrong."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.api.views import JobView, SamplesView
from orchestrator.cli.pictures.style import bar, facts, sparkline, state_text
from orchestrator.cli.wording import (
    count_text,
    day_text,
    harmless,
    loss_text,
    plural,
    rate_text,
    seconds_text,
)
from workers.contract.config import (
    DataConfig,
    Engine,
    HfModel,
    LlamaModel,
    MixtureData,
    TaskData,
    TaskModel,
    TrainingConfig,
)
from workers.contract.events import Sample
from workers.contract.failure import Verdict

BAR_WIDTH = 32
CURVE_WIDTH = 32


def job_page(job: JobView, samples: SamplesView, *, now: datetime) -> RenderableType:
    """Head, facts, and the failure if there is one."""
    head = Text.assemble((job.name, "bold"), "  ", state_text(job.state), ("  " + job.id, "dim"))
    parts: list[RenderableType] = [head, facts(_facts(job, samples, now))]
    if job.verdict is not None and job.state in ("failed", "recovering"):
        parts.append(failure_text(job.verdict))
    return Group(*parts)


def failure_text(verdict: Verdict) -> RenderableType:
    """Show what happened, to which rank, with its traceback as it was raised."""
    parts = [Text.assemble("\n", ("Failure", "bold red"), "  ", harmless(verdict.summary))]
    if verdict.traceback:
        parts.append(Text(harmless(_readable(verdict.traceback))))
    if verdict.consequences:
        ranks = ", ".join(str(rank) for rank in verdict.consequences)
        word = "rank" if len(verdict.consequences) == 1 else "ranks"
        parts.append(Text(f"{word} {ranks} ended because of it", style="dim"))
    return Group(*parts)


def _readable(traceback: str) -> str:
    """Leave out the lines that only underline: they break at the edge of a terminal, and a log has them."""
    return "\n".join(line for line in traceback.splitlines() if line.strip(" ^~") or not line.strip())


def training_facts(config: TrainingConfig) -> Iterator[tuple[str, str]]:
    """What a job file asks for, in three lines."""
    train = config.train
    yield "model", f"{_model_name(config.model)} on {_data_name(config.data)}"
    yield (
        "train",
        f"{plural(train.steps, 'step')} of {plural(train.batch.global_sequences, 'sequence')}, "
        f"{train.optimizer.name}, {train.precision.params}",
    )
    yield "engine", ", ".join(_engine_parts(config.engine))


def _model_name(model: LlamaModel | HfModel | TaskModel) -> str:
    match model:
        case LlamaModel():
            return f"llama {model.size}"
        case HfModel():
            name = model.path or (model.config or {}).get("model_type", "")
            return f"hf {name}" + (f", LoRA of rank {model.lora.rank}" if model.lora else "")
        case TaskModel():
            return f"task {model.target}"


def _data_name(data: DataConfig) -> str:
    match data:
        case TaskData():
            return "its own data"
        case MixtureData():
            return f"a mixture of {', '.join(data.sources)}, sequences of {data.seq_len}"
        case _:
            return f"{data.kind} of {data.path}, sequences of {data.seq_len}"


def _engine_parts(engine: Engine) -> Iterator[str]:
    yield engine.kind
    yield f"ZeRO stage {engine.stage}"
    if engine.shard_group_size is not None:
        yield f"gathered within groups of {engine.shard_group_size}"
    for what, where in (("optimizer state", engine.offload.optimizer), ("parameters", engine.offload.params)):
        if where != "none":
            yield f"{what} on {where}"
    if engine.activation_checkpointing != "none":
        yield f"{engine.activation_checkpointing} activation checkpointing"
    if engine.compile:
        yield "compiled"


def training_facts_of(job: JobView) -> Iterator[tuple[str, str]]:
    """The same of a job; nothing where the list left its spec out."""
    if job.spec:
        yield from training_facts(config_of(job.spec))


def speed_of(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Tokens per second and seconds per step by the newest sample of the lowest rank."""
    rank = min((s for s in samples if s.steps and s.step_seconds > 0), key=lambda s: s.rank, default=None)
    if rank is None:
        return None
    return rank.tokens / (rank.steps * rank.step_seconds), rank.step_seconds


def _facts(job: JobView, samples: SamplesView, now: datetime) -> Iterator[tuple[str, RenderableType]]:
    if job.reason and job.state != "succeeded":
        yield "reason", Text(harmless(job.reason))
    share = job.step / job.target_steps if job.target_steps else 0.0
    steps = f"{count_text(job.step)} of {count_text(job.target_steps)}  "
    yield "step", Text.assemble(steps, bar(share, BAR_WIDTH, "green" if job.state == "succeeded" else "blue"))
    if samples.losses:
        yield "loss", loss_curve(samples)
    yield from _speed(job, samples)
    yield from training_facts_of(job)
    yield "workers", workers_text(job)
    yield "restarts", restarts_text(job)
    yield "time", _time_text(job, now)
    if job.run_dir:
        yield "files", job.run_dir
    if job.result is not None and job.result.export_path:
        yield "export", job.result.export_path


def _speed(job: JobView, samples: SamplesView) -> Iterator[tuple[str, str]]:
    """Of a job that runs, how fast it is now; of one that has finished, how fast it was."""
    now = speed_of(samples.latest)
    was = job.result.tokens_per_second if job.result is not None else None
    if was is not None:
        yield "speed", f"{rate_text(was)} tokens/s"
    elif now is not None and not job.is_terminal:
        yield "speed", f"{rate_text(now[0])} tokens/s, {seconds_text(now[1])} a step"


def loss_curve(samples: SamplesView) -> Text:
    """First loss, the curve, newest loss; of one point, that."""
    losses = [point.loss for point in samples.losses]
    if len(losses) == 1:
        return Text(loss_text(losses[0]))
    return Text.assemble(
        loss_text(losses[0]), " ", (sparkline(losses, CURVE_WIDTH), "blue"), " ", loss_text(losses[-1])
    )


def workers_text(job: JobView) -> str:
    """How many workers it runs on, and how many it may."""
    if not job.spec:
        return str(job.world_size or "-")
    scaling = config_of(job.spec).scaling
    width = scaling.num_workers
    asked = str(width.max) if width.min == width.max else f"{width.min} to {width.max}"
    each = f"{plural(scaling.cpus_per_worker, 'CPU')} each"
    return f"{job.world_size} of {asked}, {each}" if job.world_size else f"{asked} asked for, {each}"


def restarts_text(job: JobView) -> str:
    """What was rebuilt, and how much of the failure budget that took."""
    counters = job.counters
    rebuilt = [
        plural(number, what)
        for number, what in (
            (counters.rounds, "round"),
            (counters.attempts, "attempt"),
            (counters.generations, "generation"),
        )
        if number
    ]
    if not rebuilt and not counters.charged:
        return "none"
    limit = f" of {config_of(job.spec).failure.max_failures}" if job.spec else ""
    return f"{', '.join(rebuilt) or 'none'}; {counters.charged}{limit} failures charged"


def config_of(spec: Mapping[str, Any]) -> TrainingConfig:
    """Read the training part of a spec as the service tells it; a newer service's own keys are set aside."""
    known = {key: value for key, value in spec.items() if key in TrainingConfig.model_fields}
    return TrainingConfig.model_validate(known)


def _time_text(job: JobView, now: datetime) -> str:
    end = job.finished_at or now
    lived = seconds_text((end - job.created_at).total_seconds())
    if job.started_at is None:
        return f"submitted {day_text(job.created_at)}, {lived} ago"
    ran = seconds_text((end - job.started_at).total_seconds())
    return f"submitted {day_text(job.created_at)}; {'ran' if job.is_terminal else 'runs for'} {ran}"
