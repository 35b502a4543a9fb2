"""When a failing round has told enough, and who is named."""

from workers.contract.failure import FailureClass, RankEnding, Verdict
from workers.driver.settle import CAUSE_SECONDS, GATHER_SECONDS, LookAgain, settle

NODES = {0: "a", 1: "b", 2: "c"}


def ending(rank: int, **fields) -> RankEnding:
    return RankEnding(rank=rank, node=NODES[rank], at=fields.pop("at", 5.0), **fields)


def closed_connection(rank: int, **fields) -> RankEnding:
    return ending(
        rank,
        exit_code=1,
        error_type="RuntimeError",
        message="Connection closed by peer",
        traceback="...",
        **fields,
    )


def judge(*endings: RankEnding, seen_at, now: float, heard_at=None):
    heard = dict.fromkeys(NODES, now) if heard_at is None else heard_at
    return settle(endings=endings, seen_at=seen_at, heard_at=heard, nodes=NODES, lease_seconds=15.0, now=now)


def test_a_signal_is_judged_at_once():
    verdict = judge(ending(1, exit_code=-9), seen_at=[5.0], now=5.0)
    assert isinstance(verdict, Verdict)
    assert (verdict.failure_class, verdict.first_rank) == (FailureClass.RANK_LOST, 1)
    assert "killed by signal 9" in verdict.summary


def test_an_error_of_its_own_waits_a_moment_for_the_other_ranks():
    mine = ending(2, exit_code=1, error_type="ValueError", message="marker-123", traceback="Traceback ...")
    assert judge(mine, seen_at=[5.0], now=5.1) == LookAgain(at=5.0 + GATHER_SECONDS)
    verdict = judge(mine, closed_connection(0), seen_at=[5.0, 5.2], now=5.0 + GATHER_SECONDS)
    assert isinstance(verdict, Verdict)
    assert verdict.first_rank == 2
    assert verdict.consequences == (0,)


def test_when_every_rank_has_ended_nothing_is_waited_for():
    same = [
        ending(rank, exit_code=1, error_type="ValueError", message="bad", traceback="T", at=5.0 + rank)
        for rank in NODES
    ]
    verdict = judge(*same, seen_at=[5.0, 5.0, 5.0], now=5.0)
    assert isinstance(verdict, Verdict)
    assert (verdict.first_rank, verdict.consequences) == (0, (1, 2))


def test_errors_that_follow_from_a_lost_peer_wait_for_its_own_word():
    followers = (closed_connection(0), closed_connection(1))
    waiting = judge(*followers, seen_at=[5.0, 5.1], now=6.0)
    assert waiting == LookAgain(at=5.0 + CAUSE_SECONDS)
    culprit = ending(2, at=6.0, exit_code=1, error_type="ValueError", message="marker-123", traceback="T")
    verdict = judge(*followers, culprit, seen_at=[5.0, 5.1, 6.0], now=6.0)
    assert isinstance(verdict, Verdict)
    assert (verdict.first_rank, verdict.failure_class) == (2, FailureClass.USER_CODE)
    assert "marker-123" in verdict.summary


def test_a_peer_that_never_speaks_is_not_waited_for_without_end():
    verdict = judge(closed_connection(0), seen_at=[5.0], now=5.0 + CAUSE_SECONDS)
    assert isinstance(verdict, Verdict)
    assert verdict.failure_class is FailureClass.RANK_LOST


def test_a_silent_agent_is_waited_for_a_lease_and_then_named():
    heard = {0: 8.0, 1: 4.0, 2: 8.0}
    assert judge(closed_connection(0), seen_at=[5.0], now=8.0, heard_at=heard) == LookAgain(at=20.0)
    verdict = judge(closed_connection(0), seen_at=[5.0], now=20.0, heard_at={**heard, 0: 19.0, 2: 19.0})
    assert isinstance(verdict, Verdict)
    assert (verdict.failure_class, verdict.first_rank, verdict.node) == (FailureClass.AGENT_LOST, 1, "b")
