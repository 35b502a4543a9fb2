"""When a failing round has told enough: endings in, one verdict or a time to look again out. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workers.contract.failure import FailureClass, RankEnding, Verdict, fold, is_consequence

GATHER_SECONDS: Final = 0.3  # after an error of its own: let the other ranks' errors arrive, to be told once
CAUSE_SECONDS: Final = 3.0  # after errors that follow from another: let that other one speak


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAgain:
    """Not enough is known yet."""

    at: float


def settle(
    *,
    endings: Sequence[RankEnding],
    seen_at: Sequence[float],
    heard_at: Mapping[int, float],
    nodes: Mapping[int, str],
    lease_seconds: float,
    now: float,
) -> Verdict | LookAgain:
    """Judge a round in which at least one rank has ended.

    `seen_at[i]` is when `endings[i]` arrived and `heard_at[rank]` when that agent was last heard, both on the
    driver's clock. A signal speaks for itself, at once. An error of its own waits a moment for its likes. Errors
    that only follow from a lost peer wait for that peer to be named; if its agent stays silent for a lease, the
    agent is the one.
    """
    first_seen = min(seen_at)
    everyone_ended = len({ending.rank for ending in endings}) >= len(nodes)
    own = [seen for ending, seen in zip(endings, seen_at, strict=True) if not is_consequence(ending)]
    if own:
        by_signal = any(e.signal is not None and not e.error_type for e in endings)
        if by_signal or everyone_ended or now >= min(own) + GATHER_SECONDS:
            return fold(endings)
        return LookAgain(at=min(own) + GATHER_SECONDS)
    silent = [rank for rank in nodes if heard_at.get(rank, first_seen - 1) < first_seen]
    ended = {ending.rank for ending in endings}
    silent = [rank for rank in silent if rank not in ended]
    if silent and now >= first_seen + lease_seconds:
        return _agent_lost(silent, nodes, lease_seconds, endings)
    if silent:
        return LookAgain(at=first_seen + lease_seconds)
    if everyone_ended or now >= first_seen + CAUSE_SECONDS:
        return fold(endings)
    return LookAgain(at=first_seen + CAUSE_SECONDS)


def _agent_lost(
    silent: Sequence[int], nodes: Mapping[int, str], lease_seconds: float, endings: Sequence[RankEnding]
) -> Verdict:
    rank = min(silent)
    return Verdict(
        failure_class=FailureClass.AGENT_LOST,
        summary=f"agent_lost: the agent of rank {rank} on {nodes[rank]} was not heard for {lease_seconds:g} s",
        first_rank=rank,
        node=nodes[rank],
        evidence=fold(endings).evidence,
        consequences=tuple(sorted({ending.rank for ending in endings})),
    )
