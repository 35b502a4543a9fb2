"""All ranks leave after the same step, whichever of them was told to, and nobody pays for it."""

import random
import threading

import pytest

from workers.agent.messages import Holds, Noticed, Said
from workers.board import BOARD_SIZE, BoardProgress, ask_to_leave
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass
from workers.contract.rank_messages import Left
from workers.driver.drain import last_step
from workers.driver.effects import AttemptEnded, LeaveAsked, NodeLeaves
from workers.driver.state import Stage


def hold(game, steps: dict[int, int]) -> None:
    for rank, step in steps.items():
        game.agent(Holds(rank=rank, round=game.round, step=step))


def leave(game, step: int) -> None:
    for rank in range(game.state.request.world_size):
        message = Left(step=step, checkpoint=f"step-{step}")
        game.agent(Said(rank=rank, round=game.round, message=message))


@pytest.fixture
def game(play):
    game = play()
    game.start()
    game.step(20)
    return game


def test_a_rank_that_is_told_to_leave_takes_all_with_it_and_nobody_pays(game) -> None:
    """B125, B126: SIGTERM to one rank."""
    game.agent(Noticed(rank=1, round=0))
    game.agent(Noticed(rank=1, round=0))
    assert game.orders[-1].leave.after_step is None
    hold(game, {0: 20, 1: 21})
    assert [(o.round, o.leave.after_step) for o in game.orders[1:]] == [(0, None), (0, 22)]
    leave(game, 22)
    assert game.orders[-1].action == "stop"
    [failed] = game.said(EventKind.ATTEMPT_FAILED)
    assert (
        failed.message == "preempted: rank 1 on n1 was told to leave (SIGTERM); all ranks left after step 22"
    )
    game.give(AttemptEnded(attempt=0, error=""))
    game.after(0)
    assert game.attempts == [0, 1]
    assert (game.state.counters.charged, game.state.counters.uncharged, game.state.furthest) == (0, 1, 22)


def test_a_node_that_ray_drains_is_left(game) -> None:
    game.give(NodeLeaves(attempt=0, node_id="somebody-elses"))
    assert len(game.orders) == 1
    game.give(NodeLeaves(attempt=0, node_id="id1"))
    assert game.orders[-1].leave is not None
    assert "rank 1 on n1 is on a node that Ray drains" in game.said(EventKind.NOTE)[-1].message


def test_the_orchestrators_wish_ends_the_generation_in_order_however_often_it_is_told(game) -> None:
    for _ in range(3):
        game.give(LeaveAsked(reason="paused by ada"))
    hold(game, {0: 20, 1: 20})
    leave(game, 21)
    game.give(AttemptEnded(attempt=0, error=""))
    outcome = game.state.outcome
    assert (outcome.phase, outcome.reason) == ("drained", "paused by ada")
    assert game.said(EventKind.DRAINED)[0].step == 21
    assert game.said(EventKind.ATTEMPT_FAILED) == []


def test_where_nothing_trains_there_is_nothing_to_wait_for(play) -> None:
    game = play()
    game.after(0)
    game.give(LeaveAsked(reason="paused by ada"))
    assert game.state.outcome.phase == "drained"


def test_a_wish_that_comes_while_ranks_leave_for_another_reason_is_obeyed_too(game) -> None:
    game.agent(Noticed(rank=1, round=0))
    game.give(LeaveAsked(reason="paused by ada"))
    hold(game, {0: 20, 1: 20})
    leave(game, 21)
    assert game.state.after_close.phase == "drained"


def test_ranks_that_finish_the_job_instead_have_finished_it(game) -> None:
    game.agent(Noticed(rank=0, round=0))
    hold(game, {0: 59, 1: 59})
    game.done(60)
    assert game.state.after_close.phase == "finished"


def test_a_rank_that_is_killed_before_all_have_left_costs_nothing_but_its_own_fault_does(game) -> None:
    game.agent(Noticed(rank=1, round=0))
    game.end(1, exit_code=-9)
    [failed] = game.said(EventKind.ATTEMPT_FAILED)
    assert "before all ranks had left: rank_lost: rank 1" in failed.message
    assert game.state.counters.charged == 0


def test_what_is_a_failure_of_its_own_stays_one(game) -> None:
    game.agent(Noticed(rank=1, round=0))
    game.end(
        0, exit_code=1, failure_class=FailureClass.NON_FINITE, error_type="NonFiniteError", message="nan"
    )
    game.after(1)
    assert game.state.after_close.phase == "failed"


def test_no_rank_is_asked_to_leave_a_round_that_is_over(game) -> None:
    game.end(1, exit_code=-9)
    orders = len(game.orders)
    game.agent(Noticed(rank=0, round=0))
    assert game.state.stage is Stage.TRAINING
    assert [o.leave for o in game.orders[orders:]] == []


def test_ranks_that_step_in_lockstep_always_leave_at_the_same_step() -> None:
    """Three threads meet in every step, as in a collective; they are asked at 100 random moments."""
    draw = random.Random(7)
    for _ in range(100):
        boards = [[0] * BOARD_SIZE for _ in range(3)]
        meet = threading.Barrier(3)
        ended: dict[int, int] = {}

        def train(rank: int, boards=boards, meet=meet, ended=ended) -> None:
            progress, step = BoardProgress(boards[rank]), 0
            while progress.may_begin(step):
                meet.wait(30)  # raises where somebody has left alone
                step += 1
            ended[rank] = step

        ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
        for thread in draw.sample(ranks, 3):
            thread.start()
        moment = draw.randrange(30)
        while boards[0][5] < moment:  # how far rank 0 says that it is
            pass
        order = draw.sample(range(3), 3)
        finished = {rank: ask_to_leave(boards[rank], None) for rank in order}
        for rank in draw.sample(order, 3):
            ask_to_leave(boards[rank], last_step(finished))
        for thread in ranks:
            thread.join(30)
        assert len(ended) == 3
        assert len(set(ended.values())) == 1
