"""A job as the service would tell it: two ranks, one of them killed at step 74, recovered from step 60."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from orchestrator.api.views import (
    CheckpointView,
    EventView,
    JobView,
    LossPoint,
    SamplesView,
)
from orchestrator.cli.demo_story import Kill, Story
from orchestrator.cli.screen import Screen
from workers.contract.events import EventKind, JobResult, Sample
from workers.contract.restart import Counters

BEGAN = datetime(2026, 12, 1, 13, 3, 22, tzinfo=UTC)
KIND = EventKind


def at(seconds: float) -> datetime:
    """Seconds after the job was submitted."""
    return BEGAN + timedelta(seconds=seconds)


def checkpoint_name(step: int, round_: int) -> str:
    """Name of a checkpoint of generation 1, attempt 0."""
    return f"step-{step:08d}.g1.a0.r{round_}.0badcafe"


TOLD: list[tuple[float, EventKind, str, dict[str, Any]]] = [
    (0.0, KIND.STATE, "queued: submitted", {"new": "queued", "reason": "submitted"}),
    (0.3, KIND.GRANTED, "generation 1: 2 workers x 1 CPU", {}),
    (
        0.3,
        KIND.STATE,
        "queued -> starting: generation 1 starts",
        {"new": "starting", "reason": "generation 1 starts"},
    ),
    (4.9, KIND.DRIVER_STARTED, "driver of generation 1, 2 workers", {}),
    (5.0, KIND.ATTEMPT_STARTED, "asks Ray for 2 workers x 1 CPU", {}),
    (11.8, KIND.AGENTS_READY, "2 agents stand ready", {}),
    (11.9, KIND.ROUND_STARTED, "round 0 from step 0", {"pids": {"0": 811, "1": 812}, "resume_from": None}),
    (13.6, KIND.FIRST_STEP, "first step of round 0", {"round_seconds": 1.7}),
    (13.7, KIND.STATE, "starting -> running", {"new": "running", "reason": ""}),
    (24.0, KIND.CHECKPOINT_PUBLISHED, "published step 20", {"checkpoint": checkpoint_name(20, 0)}),
    (34.4, KIND.CHECKPOINT_PUBLISHED, "published step 40", {"checkpoint": checkpoint_name(40, 0)}),
    (44.1, KIND.CHECKPOINT_PUBLISHED, "published step 60", {"checkpoint": checkpoint_name(60, 0)}),
    (51.43, KIND.ROUND_FAILED, "rank_lost: rank 1 on 127.0.0.2 in step at step 74: killed by signal 9", {}),
    (
        51.44,
        KIND.RESTART,
        "rank_lost: rank 1 on 127.0.0.2 in step at step 74: killed by signal 9; restart 1 of 5",
        {},
    ),
    (
        51.5,
        KIND.ROUND_STARTED,
        "round 1 from step 60",
        {"pids": {"0": 901, "1": 902}, "resume_from": checkpoint_name(60, 0)},
    ),
    (51.9, KIND.FIRST_STEP, "first step of round 1, 0.46 s after the failure", {"fault_seconds": 0.46}),
    (62.3, KIND.CHECKPOINT_PUBLISHED, "published step 80", {"checkpoint": checkpoint_name(80, 1)}),
    (62.4, KIND.CHECKPOINT_DELETED, "deleted step 20, keep is 3", {"checkpoint": checkpoint_name(20, 0)}),
    (98.4, KIND.CHECKPOINT_PUBLISHED, "published step 150", {"checkpoint": checkpoint_name(150, 1)}),
    (99.9, KIND.EXPORTED, "exported to /var/tmp/yard/storage/j-7f3k2m9q/export", {}),
    (100.0, KIND.FINISHED, "150 steps, loss 5.5512 to 1.9731", {}),
    (100.2, KIND.STATE, "running -> succeeded: 150 steps", {"new": "succeeded", "reason": "150 steps"}),
]


@pytest.fixture
def events() -> list[EventView]:
    """The whole timeline of the job."""
    return [
        EventView(
            kind=kind,
            generation=1,
            sequence=n,
            cursor=n + 1,
            at=at(seconds),
            message=message,
            data=data,
            attempt=0,
        )
        for n, (seconds, kind, message, data) in enumerate(TOLD)
    ]


@pytest.fixture
def sample() -> Callable[..., Sample]:
    """Make a sample; every field may be given."""

    def make(rank: int = 0, step: int = 120, **given: Any) -> Sample:
        fields: dict[str, Any] = {
            "rank": rank,
            "step": step,
            "attempt": 0,
            "round": 1,
            "at": at(20 + step / 2),
            "loss": 2.4137,
            "learning_rate": 1e-3,
            "grad_norm": 0.8,
            "tokens": 8192,
            "steps": 2,
            "step_seconds": 0.5,
            "memory_bytes": {
                "parameters": 5_968_384,
                "gradients": 5_968_384,
                "optimizer_state": 11_936_768,
                "buffers": 131_072,
            },
            "rss_bytes": 412 << 20,
        }
        return Sample.model_validate({**fields, **given})

    return make


@pytest.fixture
def samples(sample: Callable[..., Sample]) -> SamplesView:
    """The newest samples of two ranks and a falling loss."""
    losses = [LossPoint(step=step, loss=1.9 + 3.65 * 0.97**step) for step in range(0, 150, 3)]
    return SamplesView(latest=[sample(0), sample(1)], losses=losses)


@pytest.fixture
def job() -> Callable[..., JobView]:
    """Make the job; every field may be given."""

    def make(**given: Any) -> JobView:
        fields: dict[str, Any] = {
            "id": "j-7f3k2m9q",
            "name": "quickstart",
            "state": "running",
            "reason": "",
            "desired": "run",
            "generation": 1,
            "world_size": 2,
            "step": 120,
            "target_steps": 150,
            "counters": Counters(charged=1, rounds=1, furthest_step=120),
            "created_at": at(0),
            "updated_at": at(80),
            "started_at": at(0.3),
            "run_dir": "/var/tmp/yard/storage/j-7f3k2m9q",
            "spec": {
                "name": "quickstart",
                "model": {"kind": "llama", "size": "tiny"},
                "data": {"kind": "text", "path": "python-stdlib"},
                "train": {"steps": 150, "batch": {"global_sequences": 16}},
                "scaling": {"num_workers": {"min": 2, "max": 2, "step": 1}},
            },
        }
        return JobView.model_validate({**fields, **given})

    return make


@pytest.fixture
def result() -> JobResult:
    """What the job proves at its end."""
    return JobResult(
        final_step=150,
        loss_first=5.5512,
        loss_last=1.9731,
        tokens=614_400,
        samples_repeated=0,
        samples_missing=0,
        replayed_steps=14,
        checkpoint=checkpoint_name(150, 1),
        export_path="/var/tmp/yard/storage/j-7f3k2m9q/export",
        seconds=88.1,
        tokens_per_second=8192.0,
    )


@pytest.fixture
def checkpoints() -> list[CheckpointView]:
    """The three that are kept."""
    return [
        CheckpointView(
            name=checkpoint_name(step, 1),
            step=step,
            generation=1,
            attempt=0,
            round=1,
            parent=None,
            world_size=2,
            tokens_seen=step * 4096,
            total_bytes=35_810_304,
            published_at=at(20 + step / 2),
        )
        for step in (150, 140, 120)
    ]


@pytest.fixture
def story(events: list[EventView], samples: SamplesView) -> Story:
    """What the demo saw of it."""
    told = Story(kill=Kill(rank=1, pid=812, at=at(51.42), step=74))
    told.look(samples)
    for event in events:
        told.hear(event)
    return told


@pytest.fixture
def draw() -> Callable[..., str]:
    """Render as a terminal of a width would show it, without colours."""

    def render(*parts: RenderableType, width: int = 80) -> str:
        stream = StringIO()
        console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
        for part in parts:
            console.print(part)
        return stream.getvalue()

    return render


@pytest.fixture
def screen() -> Callable[..., Screen]:
    """Make a screen that writes into memory: `screen.out.file` and `screen.err.file`."""

    def make(*, as_json: bool = False) -> Screen:
        out, err = (
            Console(file=StringIO(), width=120, highlight=False, markup=False, emoji=False) for _ in range(2)
        )
        return Screen(as_json=as_json, out=out, err=err)

    return make
