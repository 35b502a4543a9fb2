"""When the demo kills, whom, and what it makes of what follows."""

import json
from collections.abc import Callable

import pytest

from orchestrator.api.views import EventView, JobView, SamplesView
from orchestrator.cli.demo_story import Story, summary
from workers.contract.events import JobResult

MakeJob = Callable[..., JobView]


@pytest.fixture
def before_the_kill(events: list[EventView], samples: SamplesView) -> Story:
    """The demo as it stands at step 74: three checkpoints, nothing killed."""
    story = Story()
    story.look(samples)
    for event in events[:12]:
        story.hear(event)
    return story


def test_the_last_rank_is_killed_well_past_a_checkpoint(before_the_kill: Story, job: MakeJob) -> None:
    assert before_the_kill.victim(job(step=74)) == (1, 812)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"step": 62}, "the newest checkpoint is too near: nothing would be lost"),
        ({"step": 30}, "the run is not in its middle yet"),
        ({"step": 74, "state": "recovering"}, "it is not running"),
        ({"step": 74, "state": "succeeded"}, "it is over"),
    ],
)
def test_nobody_is_killed(before_the_kill: Story, job: MakeJob, change: dict[str, object], why: str) -> None:
    assert before_the_kill.victim(job(**change)) is None, why


def test_nobody_is_killed_before_the_first_checkpoint(events: list[EventView], job: MakeJob) -> None:
    story = Story()
    for event in events[:9]:
        story.hear(event)
    assert story.victim(job(step=74)) is None


def test_only_one_rank_is_ever_killed(story: Story, job: MakeJob) -> None:
    assert story.victim(job(step=140)) is None


def test_recovery_is_counted_from_the_kill_to_the_next_optimizer_step(story: Story) -> None:
    assert story.recovery_seconds() == pytest.approx(0.48)
    assert story.resumed_from_step() == 60


def test_the_summary_holds_every_field_that_was_promised(
    story: Story, job: MakeJob, result: JobResult
) -> None:
    told = summary(story, job(state="succeeded", step=150, result=result))
    assert {
        "status": "succeeded",
        "attempts": 1,
        "rounds": 2,
        "kills": 1,
        "resumed_from_step": 60,
        "lost_steps": 14,
        "final_step": 150,
        "loss_first": 5.5512,
        "loss_last": 1.9731,
        "samples_repeated": 0,
        "samples_missing": 0,
    }.items() <= told.items()
    assert told["recovery_seconds"] == pytest.approx(0.48)
    assert told["tokens_per_second"] == pytest.approx(8192)
    assert told["memory_bytes"]["parameters"] == 5_968_384
    assert len(told["checkpoints"]) == 5
    assert told["export_path"].endswith("/export")
    json.dumps(told)


def test_a_run_that_ended_before_the_kill_is_told_as_it_is(job: MakeJob) -> None:
    told = summary(Story(), job(state="failed", reason="user_code is not retried"))
    assert told["status"] == "failed"
    assert told["kills"] == 0
    assert told["recovery_seconds"] is None
    assert told["memory_bytes"] == {}
