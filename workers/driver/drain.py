"""All ranks leave a round together, after the same step, with what they trained published. Pure.

Ranks meet in every step, so one that leaves alone lets the others wait for ever. Two phases: every rank is asked to hold
before its next step, and its agent says which one that can be at the latest; then all are told to leave after the
furthest of these. None can have begun a later one, as it would have had to pass where it holds. A rank that compiles,
evaluates or saves holds when it comes to its next step: nobody is interrupted.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from workers.contract.events import EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.contract.launch import Leave
from workers.contract.rank_messages import Left
from workers.driver.effects import Post, Say
from workers.driver.progress import reach
from workers.driver.state import Drain, Outcome, Round, Stage, State
from workers.driver.transitions import Next, close, fail

# What is a failure of its own, whoever leaves meanwhile. Anything else may come from processes that were ended early.
_OWN_FAULTS: Final = frozenset(
    {
        FailureClass.CONFIG,
        FailureClass.NON_FINITE,
        FailureClass.OUT_OF_MEMORY,
        FailureClass.CHECKPOINT_DAMAGED,
        FailureClass.STORAGE,
    }
)


def leave_for_good(state: State, reason: str, now: float) -> Next:
    """End the generation in order. Where nothing trains there is nothing to save."""
    then = Outcome(phase="drained", reason=reason)
    if isinstance(state.after_close, Outcome):
        return state, ()  # it ends already
    round_ = state.round
    if state.stage is not Stage.TRAINING or round_ is None:
        return close(state, then, now)
    if round_.drain is not None:
        drain = round_.drain if round_.drain.then is not None else replace(round_.drain, then=then)
        return replace(state, round=replace(round_, drain=drain)), ()
    return _ask(state, round_, Drain(reason=reason, asked_at=now, then=then))


def leave_node(state: State, rank: int, why: str, now: float) -> Next:
    """Go on elsewhere: the node of `rank`, or its process, is about to go."""
    round_ = state.round
    if state.stage is not Stage.TRAINING or round_ is None or round_.drain is not None or round_.endings:
        return state, ()
    node = state.nodes.get(rank, "")
    reason = f"rank {rank} on {node} {why}"
    return _ask(state, round_, Drain(reason=reason, asked_at=now, then=None, rank=rank, node=node))


def _ask(state: State, round_: Round, drain: Drain) -> Next:
    said = Say(
        kind=EventKind.NOTE,
        message=f"{drain.reason}: all ranks save and leave together",
        attempt=state.attempt,
        round=round_.order.round,
        rank=drain.rank,
    )
    order = round_.order.model_copy(update={"leave": Leave()})
    return replace(state, round=replace(round_, order=order, drain=drain)), (said, Post(order=order))


def holds(state: State, rank: int, step: int) -> Next:
    """Note where a rank holds; once all do, tell them after which step they leave."""
    round_ = state.round
    if round_ is None or round_.drain is None or round_.drain.after_step is not None:
        return state, ()
    drain = replace(round_.drain, holds={**round_.drain.holds, rank: step})
    if set(drain.holds) != set(state.agents):
        return replace(state, round=replace(round_, drain=drain)), ()
    drain = replace(drain, after_step=last_step(drain.holds))
    order = round_.order.model_copy(update={"leave": Leave(after_step=drain.after_step)})
    return replace(state, round=replace(round_, order=order, drain=drain)), (Post(order=order),)


def last_step(finished: Mapping[int, int]) -> int:
    """Return after how many finished steps all leave: the one in work is finished, no other is begun.

    `finished[rank]` are those before the one that the rank may have in work; -1 where it has not come to its first.
    """
    return max(finished.values()) + 1


def left(state: State, rank: int, message: Left, now: float) -> Next:
    """Note that a rank has left; once all have, end the attempt."""
    round_ = state.round
    if round_ is None or round_.drain is None:
        return state, ()
    drain = replace(round_.drain, left={**round_.drain.left, rank: message})
    state = replace(state, round=replace(round_, drain=drain))
    if set(drain.left) != set(state.agents):
        return state, ()
    state = reach(state, message.step)
    where = f"after step {message.step}" if message.checkpoint else "before the first step"
    said = Say(
        kind=EventKind.DRAINED,
        message=f"all ranks left {where}, {now - drain.asked_at:.1f} s after they were asked to",
        attempt=state.attempt,
        round=round_.order.round,
        step=message.step,
        data={"checkpoint": message.checkpoint, "seconds": now - drain.asked_at},
    )
    if drain.then is not None:
        state, effects = close(state, drain.then, now)
    else:
        state, effects = fail(state, _preempted(drain, f"all ranks left {where}", message.step), now)
    return state, (said, *effects)


def break_off(
    state: State, verdict: Verdict, now: float, *, confirmed: bool = True, gone: bool = False
) -> Next:
    """A failure while ranks leave: nobody pays for it, unless it is one of its own."""
    drain = state.round.drain if state.round is not None else None
    if drain is None or verdict.failure_class in _OWN_FAULTS:
        return fail(state, verdict, now, confirmed=confirmed, gone=gone)
    if drain.then is not None:
        return close(state, drain.then, now, gone=gone)
    excused = _preempted(drain, f"before all ranks had left: {verdict.summary}", verdict.step)
    return fail(state, excused, now, confirmed=confirmed, gone=gone)


def _preempted(drain: Drain, what: str, step: int | None) -> Verdict:
    return Verdict(
        failure_class=FailureClass.PREEMPTED,
        summary=f"preempted: {drain.reason}; {what}",
        first_rank=drain.rank,
        node=drain.node,
        step=step,
    )
