"""`decide`: what follows a failure. One pure function, so that driver and orchestrator cannot disagree."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from workers.contract.base import Message
from workers.contract.failure import FailureClass, Verdict

MAX_UNCHARGED: Final = (
    20  # in a row without progress: not placed, damaged, rendezvous are free, but never endless
)
MAX_SLOW_STARTS: Final = 3  # each has waited for minutes
SAME_STEP_LIMIT: Final = 3  # the same failure without progress, whatever the budget says
BACKOFF_SECONDS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class Counters(Message):
    """What was spent so far, over the whole life of the job. Travels with every grant and report."""

    charged: int = 0
    uncharged: int = 0
    rounds: int = 0
    attempts: int = 0
    generations: int = 0
    without_progress: int = 0  # charged failures in a row at the same furthest step
    in_a_row: int = 0  # failures of any kind since the last progress
    furthest_step: int = 0


class Action(StrEnum):
    """The smallest thing that can be rebuilt."""

    ROUND = "round"  # new rank processes, same agents
    ATTEMPT = "attempt"  # new Ray Train worker group, same driver
    GENERATION = "generation"  # new driver
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The decision, with its reason and the counters after it."""

    action: Action
    reason: str
    charged: bool
    delay_seconds: float
    counters: Counters


def _scope(failure_class: FailureClass) -> tuple[Action, bool]:
    """What is rebuilt after a failure of this class, and whether the user's budget pays for it."""
    match failure_class:
        case (
            FailureClass.USER_CODE
            | FailureClass.CONFIG
            | FailureClass.NON_FINITE
            | FailureClass.OUT_OF_MEMORY
        ):
            return Action.FAIL, False
        case FailureClass.RANK_LOST | FailureClass.HANG | FailureClass.STORAGE | FailureClass.INTERNAL:
            return Action.ROUND, True
        case FailureClass.CHECKPOINT_DAMAGED | FailureClass.RENDEZVOUS:
            return Action.ROUND, False
        case FailureClass.AGENT_LOST:
            return Action.ATTEMPT, True
        case FailureClass.PREEMPTED:
            return Action.ATTEMPT, False
        case FailureClass.NOT_PLACED | FailureClass.SLOW_START:
            return Action.GENERATION, False
        case FailureClass.DRIVER_LOST:
            return Action.GENERATION, True
        case _:
            assert_never(failure_class)


def decide(*, verdict: Verdict, counters: Counters, reached_step: int, max_failures: int) -> Restart:
    """Decide what follows `verdict`. `reached_step` is the furthest finished step the job has shown so far."""
    action, charged = _scope(verdict.failure_class)
    progressed = reached_step > counters.furthest_step
    streak = charged + (0 if progressed else counters.without_progress)
    in_a_row = 1 if progressed else counters.in_a_row + 1
    after = counters.model_copy(
        update={
            "charged": counters.charged + charged,
            "uncharged": counters.uncharged + (not charged and action is not Action.FAIL),
            "rounds": counters.rounds + (action is Action.ROUND),
            "attempts": counters.attempts + (action is Action.ATTEMPT),
            "generations": counters.generations + (action is Action.GENERATION),
            "without_progress": streak,
            "in_a_row": in_a_row,
            "furthest_step": max(reached_step, counters.furthest_step),
        }
    )

    def fail(reason: str) -> Restart:
        return Restart(action=Action.FAIL, reason=reason, charged=charged, delay_seconds=0.0, counters=after)

    if action is Action.FAIL:
        return fail(f"{verdict.failure_class.value} is not retried")
    if charged and after.charged > max_failures:
        return fail(f"failure {after.charged} is more than failure.max_failures {max_failures} allows")
    if charged and streak > SAME_STEP_LIMIT:
        return fail(f"same failure, no progress since step {after.furthest_step}, {streak} times in a row")
    limit = MAX_SLOW_STARTS if verdict.failure_class is FailureClass.SLOW_START else MAX_UNCHARGED
    if not charged and in_a_row > limit:
        return fail(
            f"restarted {in_a_row - 1} times in a row without progress, the limit after {verdict.failure_class.value}"
        )
    delay = BACKOFF_SECONDS[min(in_a_row, len(BACKOFF_SECONDS)) - 1]
    count = f"restart {after.charged} of {max_failures}" if charged else "not charged"
    return Restart(
        action=action,
        reason=f"{verdict.summary}; {count}",
        charged=charged,
        delay_seconds=delay,
        counters=after,
    )
