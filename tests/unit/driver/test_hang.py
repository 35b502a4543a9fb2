"""What is a hang, whose it is, and that slow steps are none."""

import random
from collections.abc import Sequence

import pytest

from workers.agent.messages import Stalled
from workers.agent.rank_process import STALL_SECONDS, STALL_STEPS
from workers.board import BOARD_SIZE, BoardProgress, read_board
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.driver.hang import LONG_SECONDS, judge_hang

NODES = {0: "n0", 1: "n1", 2: "n2"}


def stalled(rank: int, seconds: float, **changes) -> Stalled:
    values = {
        "rank": rank,
        "round": 0,
        "seconds": seconds,
        "phase": "step",
        "step": 41,
        "usual_step_seconds": 0.2,
        "collectives": 83,
        "process_state": "S",
    }
    return Stalled(**(values | changes))


def judge(*stalls: Stalled, hang_seconds: object = "auto", late: Sequence[int] = ()) -> Verdict | None:
    told_at = {stall.rank: 50.0 if stall.rank in late else 100.0 for stall in stalls}
    by_rank = {stall.rank: stall for stall in stalls}
    return judge_hang(by_rank, told_at, nodes=NODES, hang_seconds=hang_seconds, now=101.0)


def test_a_stopped_process_is_named_whatever_the_others_do() -> None:
    verdict = judge(stalled(1, 6.0, process_state="T"))
    assert verdict is not None
    assert (verdict.failure_class, verdict.first_rank, verdict.node) == (FailureClass.HANG, 1, "n1")
    assert "rank 1 on n1 has not moved for 6 s in step 41" in verdict.summary
    assert "stopped" in verdict.summary


def test_the_rank_that_issued_fewest_collectives_is_the_one_the_others_wait_for() -> None:
    verdict = judge(stalled(0, 40.0), stalled(1, 41.0), stalled(2, 45.0, collectives=82, process_state="R"))
    assert verdict is not None
    assert verdict.first_rank == 2
    assert "82 collectives, others 83" in verdict.summary


def test_a_rank_that_goes_on_or_is_not_heard_of_makes_it_no_hang() -> None:
    assert judge(stalled(0, 900.0), stalled(1, 900.0, collectives=82)) is None
    assert judge(*(stalled(rank, 900.0, collectives=rank) for rank in NODES), late=[2]) is None


def test_without_evidence_it_is_waited_longer_and_nobody_is_named() -> None:
    assert judge(*(stalled(rank, 60.0) for rank in NODES)) is None
    verdict = judge(*(stalled(rank, 200.0) for rank in NODES))
    assert verdict is not None
    assert verdict.first_rank is None


@pytest.mark.parametrize("changes", [{"phase": "save"}, {"phase": "evaluate"}, {"usual_step_seconds": 0.0}])
def test_what_lies_between_steps_and_steps_that_compile_have_long(changes: dict[str, object]) -> None:
    def after(seconds: float) -> Verdict | None:
        return judge(
            stalled(0, seconds), stalled(1, seconds), stalled(2, seconds, **({"collectives": 1} | changes))
        )

    assert after(LONG_SECONDS - 1) is None
    assert after(LONG_SECONDS + 1) is not None


def test_slow_steps_have_as_long_as_is_usual_for_them_and_a_job_may_say_otherwise() -> None:
    def slow(seconds: float, hang_seconds: object = "auto") -> Verdict | None:
        ranks = [stalled(rank, seconds, usual_step_seconds=5.0, collectives=rank) for rank in NODES]
        return judge(*ranks, hang_seconds=hang_seconds)

    assert slow(99.0) is None
    assert slow(101.0) is not None
    assert slow(20.0, hang_seconds=15.0) is not None


def test_no_alarm_in_a_hundred_thousand_jittery_steps_with_pauses() -> None:
    """Log-normal steps of which one in a thousand takes ten times as long, compiling, evaluations and saves of minutes; three ranks wait for the slowest."""
    draw = random.Random(7)
    now = [0]
    boards = {rank: [0] * BOARD_SIZE for rank in NODES}
    progresses = {rank: BoardProgress(board, clock_ns=lambda: now[0]) for rank, board in boards.items()}
    told = 0

    def stands_still(seconds: float, phase: str, step: int) -> None:
        """Every rank is in this phase for so long; at its end, the worst moment, they are judged."""
        nonlocal told
        for progress in progresses.values():
            progress.phase, progress.step = phase, step
        now[0] += int(seconds * 1e9)
        usual = max(read_board(board).usual_step_ns for board in boards.values()) / 1e9
        if seconds < max(STALL_SECONDS, STALL_STEPS * usual):
            return
        told += 1
        slowest = draw.choice(list(NODES))
        stalls = [
            stalled(rank, seconds, phase=phase, usual_step_seconds=usual, collectives=rank == slowest)
            for rank in NODES
        ]
        assert judge(*stalls) is None, (seconds, phase, step, usual)

    for step in range(100_000):
        seconds = 0.5 * draw.lognormvariate(0.0, 0.5) * (10 if draw.random() < 0.001 else 1)
        stands_still(300.0 if step == 0 else seconds, "step", step)
        if step % 1000 == 999:
            stands_still(draw.uniform(10, 600), "evaluate", step)
        if step % 500 == 499:
            stands_still(draw.uniform(0.1, 300), "save", step)
    assert told > 100, "pauses and slow steps that were long enough to be told"


def test_a_hang_costs_a_round_and_is_charged(play) -> None:
    game = play()
    game.start()
    game.step(41)
    game.agent(stalled(1, 3.0, process_state="S"))
    assert len(game.orders) == 1
    game.now += 6
    game.agent(stalled(1, 9.0, process_state="T"))
    assert [(o.action, o.round) for o in game.orders] == [("run", 0), ("run", 1)]
    assert game.state.counters.charged == 1
    [failed] = game.said(EventKind.ROUND_FAILED)
    assert failed.rank == 1
    game.agent(stalled(1, 11.0, process_state="T"))
    assert len(game.orders) == 2, "what is told of an earlier round changes nothing"
