"""What follows a failure, over every class, and the bounds that keep it from going on for ever."""

import pytest

from workers.contract.failure import FailureClass, Verdict
from workers.contract.restart import MAX_SLOW_STARTS, MAX_UNCHARGED, SAME_STEP_LIMIT, Action, Counters, decide

EXPECTED = {
    FailureClass.USER_CODE: (Action.FAIL, False),
    FailureClass.CONFIG: (Action.FAIL, False),
    FailureClass.NON_FINITE: (Action.FAIL, False),
    FailureClass.OUT_OF_MEMORY: (Action.FAIL, False),
    FailureClass.RANK_LOST: (Action.ROUND, True),
    FailureClass.HANG: (Action.ROUND, True),
    FailureClass.STORAGE: (Action.ROUND, True),
    FailureClass.INTERNAL: (Action.ROUND, True),
    FailureClass.CHECKPOINT_DAMAGED: (Action.ROUND, False),
    FailureClass.RENDEZVOUS: (Action.ROUND, False),
    FailureClass.AGENT_LOST: (Action.ATTEMPT, True),
    FailureClass.PREEMPTED: (Action.ATTEMPT, False),
    FailureClass.NOT_PLACED: (Action.GENERATION, False),
    FailureClass.SLOW_START: (Action.GENERATION, False),
    FailureClass.DRIVER_LOST: (Action.GENERATION, True),
}


def verdict(failure_class: FailureClass) -> Verdict:
    return Verdict(failure_class=failure_class, summary=f"{failure_class.value}: rank 1")


def after(failure_class: FailureClass, *, times: int, progress: bool, max_failures: int):
    counters, step = Counters(), 0
    for _ in range(times):
        step += progress
        decision = decide(
            verdict=verdict(failure_class), counters=counters, reached_step=step, max_failures=max_failures
        )
        counters = decision.counters
    return decision


def test_every_class_is_decided():
    assert set(EXPECTED) == set(FailureClass)


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_a_first_failure_rebuilds_the_smallest_thing_that_can_be(failure_class):
    decision = after(failure_class, times=1, progress=True, max_failures=5)
    assert (decision.action, decision.charged) == EXPECTED[failure_class]


def test_the_budget_counts_infrastructure_over_the_whole_life_of_the_job():
    assert after(FailureClass.RANK_LOST, times=5, progress=True, max_failures=5).action is Action.ROUND
    last = after(FailureClass.RANK_LOST, times=6, progress=True, max_failures=5)
    assert last.action is Action.FAIL
    assert "max_failures 5" in last.reason


def test_a_failure_that_repeats_without_progress_ends_the_job_before_the_budget_does():
    last = after(FailureClass.RANK_LOST, times=SAME_STEP_LIMIT + 1, progress=False, max_failures=1_000)
    assert last.action is Action.FAIL
    assert "no progress since step 0" in last.reason


def test_the_delay_grows_without_progress_and_is_gone_with_it():
    delays = [
        after(FailureClass.RANK_LOST, times=n, progress=False, max_failures=9).delay_seconds
        for n in (1, 2, 3)
    ]
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays[-1] > 0.0
    assert after(FailureClass.RANK_LOST, times=3, progress=True, max_failures=9).delay_seconds == 0.0


def test_uncharged_restarts_cost_no_budget_and_still_end():
    assert (
        after(FailureClass.NOT_PLACED, times=MAX_UNCHARGED, progress=False, max_failures=0).counters.charged
        == 0
    )
    assert (
        after(FailureClass.NOT_PLACED, times=MAX_UNCHARGED + 1, progress=False, max_failures=0).action
        is Action.FAIL
    )


def test_what_costs_no_budget_is_bounded_by_progress_and_not_over_the_life_of_a_job():
    """B121: a job that is preempted for the hundredth time and has trained in between goes on."""
    hundredth = after(FailureClass.PREEMPTED, times=100, progress=True, max_failures=0)
    assert hundredth.action is Action.ATTEMPT
    assert hundredth.counters.uncharged == 100


def test_a_start_that_stays_slow_ends_the_job_after_few_long_waits():
    """B101."""
    assert (
        after(FailureClass.SLOW_START, times=MAX_SLOW_STARTS, progress=False, max_failures=0).action
        is Action.GENERATION
    )
    last = after(FailureClass.SLOW_START, times=MAX_SLOW_STARTS + 1, progress=False, max_failures=0)
    assert last.action is Action.FAIL
    assert "3 times in a row without progress" in last.reason


def test_uncharged_restarts_do_not_count_as_failures_without_progress():
    counters = after(FailureClass.NOT_PLACED, times=5, progress=False, max_failures=5).counters
    lost = decide(verdict=verdict(FailureClass.RANK_LOST), counters=counters, reached_step=0, max_failures=5)
    assert lost.action is Action.ROUND
    assert lost.counters.without_progress == 1
