"""Waiting for room and waiting for nodes to start are told apart, and neither lasts for ever."""

import pytest

from workers.agent.messages import Registered, Seated
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass
from workers.driver.effects import AttemptEnded, Placed
from workers.driver.state import Stage
from workers.driver.transitions import PLACEMENT_GRACE_SECONDS


def ready(rank: int, **changes) -> Registered:
    return Registered(rank=rank, node=f"n{rank}", node_id=f"id{rank}", pid=10 + rank, **changes)


@pytest.fixture
def game(play):
    """Two workers are asked for; room within 30 s, and a start within 100 s after."""
    game = play(placement_seconds=30.0, start_seconds=100.0)
    game.after(0)
    return game


def test_without_room_the_grant_goes_back_uncharged_and_is_counted_by_who_granted_it(game) -> None:
    """B102."""
    game.after(30 + PLACEMENT_GRACE_SECONDS)
    outcome = game.state.outcome
    assert (outcome.phase, outcome.verdict.failure_class) == ("not_placed", FailureClass.NOT_PLACED)
    assert "found no room for 2 workers x 1 CPU within 30 s" in outcome.reason
    assert game.state.counters == game.state.request.counters
    assert game.said(EventKind.RESTART) == []


def test_what_ray_train_says_of_its_timeout_is_not_passed_on(game) -> None:
    error = (
        "WorkerGroupStartupTimeoutError: Set the RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S environment variable"
    )
    game.give(AttemptEnded(attempt=0, error=error, not_placed=True))
    assert "RAY_TRAIN" not in game.state.outcome.reason


def test_a_slow_start_on_nodes_that_have_room_is_waited_for(game) -> None:
    """B101: an environment that takes twice as long as placement may is no lack of room."""
    game.give(Placed(attempt=0))
    game.after(60)
    assert game.state.stage is Stage.PLACING
    game.register()
    assert game.state.stage is Stage.TRAINING


@pytest.mark.parametrize(
    ("seats", "agents", "said"),
    [
        ([], [], "0 of 2 agents stood ready within 100 s after Ray had found room: no process runs yet for ranks 0, 1"),
        ([0], [0], "1 of 2 agents stood ready within 100 s after Ray had found room: no process runs yet for rank 1"),
        ([0, 1], [0], "1 of 2 agents stood ready within 100 s after Ray had found room: rank 1 on n1 still imports torch"),
    ],
)  # fmt: skip
def test_what_is_slow_is_said_in_a_sentence(game, seats: list[int], agents: list[int], said: str) -> None:
    """B101."""
    game.give(Placed(attempt=0))
    for rank in seats:
        game.agent(Seated(rank=rank, node=f"n{rank}"))
    for rank in agents:
        game.agent(ready(rank))
    game.after(101)
    outcome = game.state.outcome or game.state.after_close
    assert (outcome.phase, outcome.verdict.failure_class) == ("not_placed", FailureClass.SLOW_START)
    assert outcome.reason.startswith(f"slow_start: {said}")


def test_news_of_an_attempt_that_is_over_lengthens_no_wait(game) -> None:
    game.give(Placed(attempt=7))
    game.after(30 + PLACEMENT_GRACE_SECONDS)
    assert game.state.outcome is not None


def test_each_attempt_waits_for_its_own_room(game) -> None:
    game.give(Placed(attempt=0))
    game.register()
    game.step(1)
    game.give(AttemptEnded(attempt=0, error="a node died", rank=1))
    game.after(game.state.until - game.now)
    assert game.state.stage is Stage.PLACING
    assert not game.state.is_placed
