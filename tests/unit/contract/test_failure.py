"""Folding N rank endings into one verdict that names the first failing rank."""

import pytest

from workers.contract.failure import FailureClass, RankEnding, fold

TRACE = "Traceback (most recent call last): ..."


def ending(rank: int, at: float, **values) -> RankEnding:
    return RankEnding(**{"rank": rank, "node": f"10.0.0.{rank}", "at": at, "exit_code": 1, **values})


@pytest.mark.parametrize("delay", [-1.0, 1.0])
def test_the_cause_is_named_even_when_its_consequences_are_seen_earlier(delay):
    cause = ending(
        2, 10.0, error_type="ValueError", message="marker-123", traceback=TRACE, step=7, phase="step"
    )
    others = [
        ending(
            r,
            10.0 + delay,
            error_type="RuntimeError",
            message="[gloo/transport/tcp] Connection closed by peer",
            traceback=TRACE,
        )
        for r in (0, 1, 3)
    ]
    verdict = fold([*others, cause])
    assert verdict.first_rank == 2
    assert verdict.node == "10.0.0.2"
    assert verdict.failure_class is FailureClass.USER_CODE
    assert "marker-123" in verdict.summary
    assert verdict.consequences == (0, 1, 3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"exit_code": -9}, FailureClass.RANK_LOST),
        ({"exit_code": -11}, FailureClass.RANK_LOST),
        ({"exit_code": 7}, FailureClass.USER_CODE),
        ({"exit_code": 139}, FailureClass.RANK_LOST),
        ({"error_type": "MemoryError", "traceback": TRACE}, FailureClass.OUT_OF_MEMORY),
        ({"error_type": "ValueError", "traceback": TRACE}, FailureClass.USER_CODE),
        ({"error_type": "E", "failure_class": FailureClass.STORAGE}, FailureClass.STORAGE),
    ],
)
def test_each_way_of_ending_has_its_class(values, expected):
    assert fold([ending(0, 1.0, **values)]).failure_class is expected


def test_a_killed_rank_is_the_cause_and_the_ranks_its_agent_ended_are_not():
    verdict = fold([ending(1, 5.0, exit_code=-9), ending(0, 4.0, exit_code=-9, ordered=True)])
    assert (verdict.first_rank, verdict.failure_class) == (1, FailureClass.RANK_LOST)
    assert "signal 9" in verdict.summary


def test_network_errors_alone_are_a_lost_peer_in_training_and_a_failed_rendezvous_at_start():
    lost = ending(0, 1.0, error_type="DistBackendError", message="Connection reset by peer", phase="step")
    assert fold([lost]).failure_class is FailureClass.RANK_LOST
    assert fold([lost.model_copy(update={"phase": "start"})]).failure_class is FailureClass.RENDEZVOUS


def test_a_round_without_any_ending_is_our_own_bug():
    assert fold([]).failure_class is FailureClass.INTERNAL
