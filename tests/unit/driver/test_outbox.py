"""What waits for the orchestrator: nothing is lost before it is acknowledged, and little is sent twice."""

from datetime import UTC, datetime

import pytest

from workers.contract.events import Event, EventKind
from workers.driver.outbox import BATCH_EVENTS, BATCH_SAMPLES, CURVE_SAMPLES, Outbox, merge


def event(sequence: int) -> Event:
    return Event(
        kind=EventKind.NOTE, generation=0, sequence=sequence, at=datetime(2026, 1, 1, tzinfo=UTC), message="m"
    )


def filled(count: int) -> Outbox:
    outbox = Outbox()
    for sequence in range(count):
        outbox = outbox.with_event(event(sequence))
    return outbox


def test_events_wait_until_they_are_acknowledged():
    outbox = filled(5).acknowledged(upto=2, sent=())
    assert [e.sequence for e in outbox.events] == [3, 4]
    assert outbox.acknowledged(upto=-1, sent=()).events == outbox.events


def test_a_long_silence_is_caught_up_in_batches_in_order():
    outbox, heard = filled(2 * BATCH_EVENTS + 7), []
    while outbox.events:
        batch = outbox.batch()
        heard += [e.sequence for e in batch.events]
        outbox = outbox.acknowledged(upto=heard[-1], sent=batch.samples)
    assert heard == list(range(2 * BATCH_EVENTS + 7))


def test_samples_of_a_rank_are_merged_so_that_tokens_and_steps_add_up(make_sample):
    first = make_sample(10).model_copy(
        update={"steps": 4, "step_seconds": 1.0, "data_seconds": 0.1, "first_index": 24, "end_index": 40}
    )
    second = make_sample(12).model_copy(
        update={"steps": 2, "step_seconds": 4.0, "data_seconds": 0.4, "first_index": 40, "end_index": 48}
    )
    both = merge(first, second)
    assert (both.step, both.steps, both.tokens) == (12, 6, first.tokens + second.tokens)
    assert both.step_seconds == pytest.approx(2.0)
    assert both.data_seconds == pytest.approx(0.2), "a mean over steps, as in what was measured"
    assert (both.first_index, both.end_index) == (24, 48)


def test_samples_of_different_rounds_are_not_merged(make_sample):
    assert merge(make_sample(10, 0), make_sample(5, 1)) == make_sample(5, 1)


def test_a_sample_that_grew_while_it_was_sent_stays(make_sample):
    outbox = Outbox().with_sample(make_sample(1)).with_sample(make_sample(1, rank=1))
    batch = outbox.batch()
    outbox = outbox.with_sample(make_sample(2, rank=1)).acknowledged(upto=-1, sent=batch.samples)
    assert outbox.curve == ()
    assert [(s.rank, s.steps) for s in outbox.others] == [(1, 2)]


def test_the_loss_curve_of_a_silence_is_kept_point_by_point_and_told_in_order(make_sample):
    outbox, told = Outbox(), []
    for step in range(1, BATCH_SAMPLES + 101):
        outbox = outbox.with_sample(make_sample(step))
    while outbox.curve:
        batch = outbox.batch()
        told += [s.step for s in batch.samples]
        outbox = outbox.acknowledged(upto=-1, sent=batch.samples)
    assert told == list(range(1, BATCH_SAMPLES + 101))


def test_a_silence_of_days_is_kept_in_bounds_and_loses_no_token(make_sample):
    outbox = Outbox()
    for step in range(1, 4 * CURVE_SAMPLES):
        outbox = outbox.with_sample(make_sample(step, round_=step // 3000))
        assert len(outbox.curve) <= CURVE_SAMPLES
    assert sum(s.tokens for s in outbox.curve) == 8 * (4 * CURVE_SAMPLES - 1)
    assert [s.step for s in outbox.curve] == sorted(s.step for s in outbox.curve)
    assert {s.round for s in outbox.curve} == {0, 1, 2}, "rounds are never merged into one"
