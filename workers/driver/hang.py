"""Whether a round hangs, and which rank the others wait for: standstills in, a verdict or nothing out. Pure.

In a training step all ranks wait for the slowest one, so a hang stops every one of them. Evidence, best first: the kernel
says that a process is stopped; a rank has issued fewer collectives than those that wait for it in one; none, then.
"""

from collections.abc import Mapping
from typing import Final, Literal

from workers.agent.messages import Stalled
from workers.contract.failure import FailureClass, Verdict, during

STOPPED_SECONDS: Final = 5.0  # a stopped process does not go on by itself
LEAST_SECONDS: Final = 30.0
USUAL_STEPS: Final = 20.0
LONG_SECONDS: Final = (
    1200.0  # compiling, loading, evaluating, saving, and steps before it is known what is usual
)
NO_EVIDENCE: Final = 4.0  # so many times as long where nothing says whom the others wait for
FRESH_SECONDS: Final = 6.0  # a rank that was not told of for so long has moved on
_STOPPED: Final = frozenset("Tt")


def judge_hang(
    stalls: Mapping[int, Stalled],
    told_at: Mapping[int, float],
    *,
    nodes: Mapping[int, str],
    hang_seconds: float | Literal["auto"],
    now: float,
) -> Verdict | None:
    """Return the verdict on ranks that stand still; None as long as it is no hang.

    `stalls[rank]` was told at `told_at[rank]`, on the clock of `now`; `nodes` are those of the ranks at work.
    """
    still = {rank: one for rank, one in stalls.items() if now - told_at[rank] <= FRESH_SECONDS}
    for stall in (still[rank] for rank in sorted(still)):
        if stall.process_state in _STOPPED and stall.seconds >= STOPPED_SECONDS:
            return _verdict(stall, nodes, "its process is stopped (SIGSTOP, or a debugger)")
    if set(still) != set(nodes):
        return None  # somebody goes on, so the others will
    stood = min(stall.seconds for stall in still.values())  # since the last one moved
    bound = patience(list(still.values()), hang_seconds)
    if stood < bound:
        return None
    issued = {rank: stall.collectives for rank, stall in still.items()}
    fewest, most = min(issued.values()), max(issued.values())
    if fewest < most:
        behind = min(rank for rank, count in issued.items() if count == fewest)
        return _verdict(still[behind], nodes, f"it has issued {fewest} collectives, others {most}")
    if stood < bound * NO_EVIDENCE:
        return None
    return _verdict(still[min(still)], nodes, "and so does every other rank; none is behind", is_named=False)


def patience(stalls: list[Stalled], hang_seconds: float | Literal["auto"]) -> float:
    """Return how many seconds all ranks may stand still."""
    in_steps = all(stall.phase == "step" and stall.usual_step_seconds > 0 for stall in stalls)
    if not in_steps:
        return LONG_SECONDS
    if hang_seconds != "auto":
        return hang_seconds
    return max(LEAST_SECONDS, USUAL_STEPS * max(stall.usual_step_seconds for stall in stalls))


def _verdict(stall: Stalled, nodes: Mapping[int, str], why: str, *, is_named: bool = True) -> Verdict:
    node = nodes.get(stall.rank, "")
    return Verdict(
        failure_class=FailureClass.HANG,
        summary=(
            f"hang: rank {stall.rank} on {node} has not moved for {stall.seconds:.0f} s"
            f"{during(stall.phase, stall.step)}: "
            f"{why}; its stacks are in its log"
        ),
        first_rank=stall.rank if is_named else None,
        node=node if is_named else "",
        phase=stall.phase,
        step=stall.step,
    )
