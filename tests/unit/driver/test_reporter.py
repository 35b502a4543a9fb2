"""What the driver writes down and how it obeys."""

import json
from datetime import UTC, datetime

import pytest

from workers.contract.events import EventKind, JobResult
from workers.contract.failure import FailureClass, Verdict
from workers.contract.report import Desired
from workers.driver.driver import last_word, stop_by
from workers.driver.effects import Forward, Say
from workers.driver.journal import SEGMENT_LINES, Segments
from workers.driver.reporter import Reporter
from workers.driver.state import Outcome


@pytest.fixture
def request_in(play, tmp_path):
    return play(run_dir=str(tmp_path)).state.request


def test_events_and_samples_are_on_disk_as_soon_as_they_are_told(request_in, tmp_path, make_sample):
    reporter = Reporter(request_in, token="", obey=lambda desired: None)
    reporter.say(Say(kind=EventKind.NOTE, message="one"))
    reporter.say(Say(kind=EventKind.NOTE, message="two"))
    reporter.forward(Forward(sample=make_sample(3)))
    events = [json.loads(line) for line in (tmp_path / "events/g0-000000000.jsonl").read_text().splitlines()]
    assert [(e["sequence"], e["message"]) for e in events] == [(0, "one"), (1, "two")]
    assert datetime.fromisoformat(events[0]["at"]).tzinfo is not None
    assert json.loads((tmp_path / "samples/g0-000000000.jsonl").read_text())["step"] == 3
    assert reporter.close(seconds=0)


def test_segments_are_numbered_by_their_first_line(tmp_path, make_sample):
    segments = Segments(tmp_path, generation=2)
    for step in range(SEGMENT_LINES + 1):
        segments.append(make_sample(step))
    segments.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "g2-000000000.jsonl",
        f"g2-{SEGMENT_LINES:09d}.jsonl",
    ]


def test_storage_that_refuses_does_not_end_training(request_in, tmp_path):
    (tmp_path / "events").write_text("a file where the directory should be")
    reporter = Reporter(request_in, token="", obey=lambda desired: None)
    assert reporter.say(Say(kind=EventKind.NOTE, message="one")).sequence == 0
    reporter.close(seconds=0)


@pytest.mark.parametrize(
    ("desired", "expected"),
    [
        (Desired(generation=0, action="run"), None),
        (Desired(generation=0, action="stop", reason="cancelled"), ("cancelled", False)),
        (Desired(generation=1, action="run"), ("generation 1 has taken over", True)),
    ],
)
def test_the_answer_says_whether_to_go_on(play, desired, expected):
    stop = stop_by(play().state.request, desired)
    assert (None if stop is None else (stop.reason, stop.lost)) == expected


RESULT = JobResult(
    final_step=5,
    loss_first=2.0,
    loss_last=1.0,
    tokens=9,
    samples_repeated=0,
    samples_missing=0,
    replayed_steps=0,
    checkpoint="c",
)
VERDICT = Verdict(failure_class=FailureClass.USER_CODE, summary="user_code: rank 1", first_rank=1)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome(phase="finished", reason="", result=RESULT), EventKind.FINISHED),
        (Outcome(phase="failed", reason="not retried", verdict=VERDICT), EventKind.FAILED),
        (Outcome(phase="stopped", reason="asked"), EventKind.STOPPED),
        (Outcome(phase="not_placed", reason="no room"), EventKind.NOTE),
        (Outcome(phase="lost", reason="fenced"), EventKind.NOTE),
    ],
)
def test_every_outcome_has_its_last_word(outcome, kind):
    assert last_word(outcome).kind is kind


def test_time_is_told_in_utc(request_in):
    reporter = Reporter(request_in, token="", obey=lambda desired: None)
    event = reporter.say(Say(kind=EventKind.NOTE, message="one"))
    assert event.at.utcoffset() == datetime.now(UTC).utcoffset()
    reporter.close(seconds=0)
