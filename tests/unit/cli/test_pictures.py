"""What a person sees, at the widths people have."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from orchestrator.api.views import CheckpointView, EventView, JobView, LossPoint, SamplesView
from orchestrator.cli.demo_story import Story
from orchestrator.cli.pictures.demo_report import demo_report
from orchestrator.cli.pictures.job_list import checkpoint_table, job_table
from orchestrator.cli.pictures.job_page import job_page
from orchestrator.cli.pictures.memory import memory_table
from orchestrator.cli.pictures.progress import fitting, progress, progress_line
from orchestrator.cli.pictures.result import result_page
from orchestrator.cli.pictures.style import sparkline
from orchestrator.cli.pictures.timeline import Mark, event_line, event_row, event_table, timeline
from workers.contract.events import EventKind, JobResult, Sample
from workers.contract.failure import FailureClass, Verdict

NOW = datetime(2026, 12, 1, 13, 5, 22, tzinfo=UTC)
Draw = Callable[..., str]
MakeJob = Callable[..., JobView]
WAITS = "waits for 2 workers x 1 CPU: 1 free of 4; first in the queue"


@pytest.mark.parametrize("width", [80, 120])
def test_no_picture_is_wider_than_the_terminal(
    draw: Draw,
    job: MakeJob,
    samples: SamplesView,
    events: list[EventView],
    checkpoints: list[CheckpointView],
    story: Story,
    result: JobResult,
    width: int,
) -> None:
    ended = job(state="succeeded", step=150, result=result)
    text = draw(
        job_page(job(), samples, now=NOW),
        job_table([job(), job(state="queued", reason=WAITS * 3), ended], now=NOW),
        checkpoint_table(checkpoints),
        event_table(events),
        result_page(ended, samples),
        progress(job(), samples.latest, width=width, elapsed_seconds=80),
        progress(job(state="queued", reason=WAITS * 3), (), width=width, elapsed_seconds=80),
        demo_report(story, ended, samples, checkpoints, text="def f():\n    return 1\n"),
        width=width,
    )
    assert max(map(cell_len, text.splitlines())) <= width


def test_a_list_tells_why_a_job_waits_and_leaves_a_running_one_in_peace(draw: Draw, job: MakeJob) -> None:
    jobs = [job(reason="step 12"), job(name="second", state="queued", reason=WAITS, world_size=0)]
    text = draw(job_table(jobs, now=NOW))
    assert WAITS in text
    assert "step 12" not in text
    assert "2 min" in text


def test_a_change_of_state_is_told_by_the_state_and_its_reason(draw: Draw, events: list[EventView]) -> None:
    text = draw(timeline(events, since=events[0].at), width=120)
    assert "succeeded" in text
    assert "running -> succeeded" not in text


def test_a_page_leaves_out_what_the_line_beside_it_says(draw: Draw, events: list[EventView]) -> None:
    text = draw(timeline(events, since=events[0].at), width=120)
    words = [line[8:].split("  ")[0] for line in text.splitlines()[1:]]
    assert [word for word in words if word in ("granted", "starting")] == ["granted"]
    assert [word for word in words if word in ("first step", "running")] == ["first step"] * 2
    assert [word for word in words if word in ("finished", "succeeded")] == ["succeeded"]
    everything = draw(event_table(events), width=120)
    assert all(word in everything for word in ("starting", "running", "finished"))


@pytest.mark.parametrize(
    ("reason", "told"), [("", 0), ("rank_lost: rank 1 died", 0), ("driver_lost: generation 1", 1)]
)
def test_that_a_job_recovers_is_told_where_no_failure_above_says_why(
    draw: Draw, events: list[EventView], reason: str, told: int
) -> None:
    failed = events[12].model_copy(update={"message": "rank_lost: rank 1 died"})
    state = events[8].model_copy(update={"data": {"new": "recovering", "reason": reason}})
    text = draw(timeline([failed, state], since=events[0].at), width=120)
    assert text.count("recovering") == told
    if told:
        restart = events[13].model_copy(update={"message": reason})
        text = draw(timeline([failed, restart, state], since=events[0].at), width=120)
        assert "recovering" not in text, "the restart said it"


def test_saves_in_a_row_are_one_row_and_hide_nothing_else(draw: Draw, events: list[EventView]) -> None:
    save = events[9]
    saves = [
        save.model_copy(
            update={
                "at": save.at + timedelta(seconds=n),
                "step": 10 * n,
                "data": {"bytes": 1 << 20, "stall_seconds": 0.5},
            }
        )
        for n in range(1, 31)
    ]
    told = [*events[:9], *saves[:20], events[12], *saves[20:]]
    text = draw(timeline(told, since=events[0].at, limit=20), width=120)
    assert "killed by signal 9" in text
    assert "steps 10 to 200, 20 checkpoints; training stood still for 10 s in all" in text
    assert "steps 210 to 300, 10 checkpoints" in text
    killed = Mark(at=saves[9].at, word="killed", text="SIGKILL to rank 1")
    parted = draw(timeline(saves, since=events[0].at, mark=killed), width=120)
    assert parted.index("steps 10 to 100") < parted.index("SIGKILL") < parted.index("steps 110 to 300")


def test_a_restart_does_not_repeat_the_failure_above_it(draw: Draw, events: list[EventView]) -> None:
    text = draw(timeline(events, since=events[0].at), width=120)
    assert text.count("killed by signal 9") == 1
    assert "restart 1 of 5" in text


def test_a_failed_job_says_its_failure_once(draw: Draw, events: list[EventView]) -> None:
    failure = "user_code: rank 0 on node-a in step at step 0: ValueError: no labels"
    last = events[12].model_copy(update={"message": failure})
    told = [
        last,
        last.model_copy(
            update={"kind": EventKind.FAILED, "message": f"{failure} (user_code is not retried)"}
        ),
        last.model_copy(
            update={
                "kind": EventKind.STATE,
                "data": {"new": "failed", "reason": f"{failure}; user_code is not retried"},
            }
        ),
    ]
    text = draw(timeline(told, since=events[0].at), width=120)
    assert text.count("ValueError") == 1
    assert text.count("user_code is not retried") == 1


def test_a_timeline_says_how_many_events_it_leaves_out(draw: Draw, events: list[EventView]) -> None:
    text = draw(timeline(events, since=events[0].at, limit=5))
    assert "12 earlier events" in text
    assert "succeeded" in text


def test_a_checkpoint_is_told_with_its_size_and_what_it_cost(draw: Draw, events: list[EventView]) -> None:
    data = {"checkpoint": "x", "bytes": 35_810_304, "stall_seconds": 0.021, "write_seconds": 0.4}
    event = events[9].model_copy(update={"data": data, "step": 20})
    assert "step 20, 34.2 MiB; training stood still for 0.02 s" in draw(event_line(event))


def test_memory_has_a_column_a_rank_and_a_sum(draw: Draw, samples: SamplesView) -> None:
    text = draw(memory_table(samples.latest))
    assert "RANK 0" in text
    assert "RANK 1" in text
    assert "optimizer state" in text
    assert "activations" not in text, "a category that is not measured is left out"
    assert "22.9 MiB" in text.split("sum")[1]


def test_memory_of_many_ranks_is_told_by_lowest_mean_and_highest(
    draw: Draw, sample: Callable[..., Sample]
) -> None:
    ranks = [sample(rank, memory_bytes={"parameters": (rank + 1) << 20}) for rank in range(9)]
    text = draw(memory_table(ranks))
    assert "LOWEST" in text
    assert [word for word in ("1.00 MiB", "5.00 MiB", "9.00 MiB") if word in text] == [
        "1.00 MiB",
        "5.00 MiB",
        "9.00 MiB",
    ]


def test_nothing_measured_draws_no_table(sample: Callable[..., Sample]) -> None:
    assert memory_table([sample(0, memory_bytes={})]) is None


def test_a_failed_job_shows_the_traceback_and_the_first_rank(
    draw: Draw, job: MakeJob, samples: SamplesView
) -> None:
    verdict = Verdict(
        failure_class=FailureClass.USER_CODE,
        summary="user_code: rank 1 on node-a in step at step 3: ValueError: bad batch",
        first_rank=1,
        traceback='Traceback (most recent call last):\n  File "train.py", line 3, in loss\n    f(x)\n    ^^^^\nValueError: bad batch\n',
        consequences=(0,),
    )
    text = draw(result_page(job(state="failed", reason="user_code is not retried", verdict=verdict), samples))
    assert 'File "train.py", line 3, in loss' in text
    assert "f(x)\nValueError: bad batch" in text, "a line that only underlines is left out"
    assert "rank 1 on node-a" in text
    assert "rank 0 ended because of it" in text
    assert "shardyard logs quickstart" in text


def test_names_and_messages_are_text_and_never_markup(
    draw: Draw, job: MakeJob, samples: SamplesView, events: list[EventView]
) -> None:
    planted = "[bold]x[/bold] \x1b[31mred\x1b[0m :smile: [link=http://planted]y[/link]"
    event = events[3].model_copy(update={"message": planted})
    text = draw(event_line(event), job_page(job(state="queued", reason=planted), samples, now=NOW), width=120)
    assert text.count("[bold]x[/bold] red :smile: [link=http://planted]y[/link]") == 2


def test_progress_drops_what_does_not_fit_and_keeps_what_matters_most() -> None:
    parts = ["loss 2.4", "8,192 tokens/s", "15 s left"]
    assert fitting(parts, 100) == "loss 2.4 · 8,192 tokens/s · 15 s left"
    assert fitting(parts, 30) == "loss 2.4 · 8,192 tokens/s"
    assert fitting(parts, 3) == "loss 2.4"


def test_progress_of_a_job_that_waits_says_for_what(draw: Draw, job: MakeJob) -> None:
    waiting = job(state="queued", step=0, reason=WAITS, world_size=0)
    assert WAITS in draw(progress(waiting, (), width=80, elapsed_seconds=5))
    assert progress_line(waiting, ()) == "queued: step 0 of 150"


def test_a_finished_job_is_as_fast_as_its_steps_were_without_the_start(
    draw: Draw, job: MakeJob, samples: SamplesView, result: JobResult, story: Story
) -> None:
    ended = job(state="succeeded", step=150, result=result, reason="finished at step 150")
    report = demo_report(story, ended, samples, (), text="")
    page = draw(job_page(ended, samples, now=NOW))
    for text in (page, draw(result_page(ended, samples)), draw(report)):
        assert "8,192 tokens/s" in text
    assert "reason" not in page, "the state says it"


def test_a_loss_of_one_point_is_told_once(draw: Draw, job: MakeJob) -> None:
    samples = SamplesView(latest=(), losses=[LossPoint(step=1, loss=5.5)])
    assert draw(job_page(job(), samples, now=NOW)).count("5.5000") == 1


def test_a_job_without_numbers_yet_has_a_page(draw: Draw, job: MakeJob) -> None:
    fresh = job(state="queued", step=0, reason=WAITS, world_size=0, started_at=None)
    text = draw(job_page(fresh, SamplesView(latest=()), now=NOW))
    assert "2 asked for, 1 CPU each" in text
    assert "loss" not in text


def test_a_clock_that_runs_ahead_gives_no_negative_time(
    draw: Draw, job: MakeJob, samples: SamplesView
) -> None:
    text = draw(
        job_page(job(), samples, now=NOW - timedelta(days=2)), job_table([job()], now=NOW - timedelta(days=2))
    )
    assert "-1" not in text.replace("12-1", "").replace("-12-01", "")
    assert "runs for 0.00 s" in text


@pytest.mark.parametrize(
    ("values", "curve"),
    [((), ""), ((1.0,), ""), ((1.0, 1.0), "▁▁"), ((0.0, 7.0), "▁█"), ((float("nan"), 3.0, 1.0), "█▁")],
)
def test_a_curve_goes_from_its_lowest_to_its_highest_value(values: Sequence[float], curve: str) -> None:
    assert sparkline(values, 10) == curve


def test_every_kind_of_event_has_a_word(draw: Draw, events: list[EventView]) -> None:
    for kind in EventKind:
        event = events[3].model_copy(update={"kind": kind})
        assert event.message in draw(event_line(event), width=120)


def test_on_a_terminal_a_long_message_folds_beside_its_kind(draw: Draw, events: list[EventView]) -> None:
    event = events[3].model_copy(update={"message": "a word and " * 20})
    first, *rest = draw(event_row(event), width=80).splitlines()
    assert first.startswith("13:03:26  driver          a word")
    assert all(line.startswith(" " * 26) for line in rest)
    assert draw(event_row(events[3]), width=80).rstrip() == draw(event_line(events[3]), width=80).rstrip()
