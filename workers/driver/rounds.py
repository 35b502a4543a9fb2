"""The life of a generation as a pure state machine: `advance(state, input, now) -> (state, effects)`.

attempt: PLACING -> CHOOSING -> TRAINING -> (a rank fails) -> [HOLDING] -> CHOOSING -> TRAINING ... -> CLOSING.
The smallest thing that broke is rebuilt: `restart.decide` says which, and what it costs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from workers.agent.messages import (
    AgentMessage,
    Ended,
    Holds,
    Noticed,
    Registered,
    Said,
    Seated,
    Stalled,
    Started,
    StoreMoved,
)
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.contract.launch import LaunchRequest
from workers.contract.rank_messages import Done, Left, Measured, Ready, Told
from workers.driver.drain import break_off, holds, leave_for_good, leave_node, left
from workers.driver.effects import (
    AgentSaid,
    AttemptEnded,
    Chosen,
    Forward,
    Heard,
    Input,
    LeaveAsked,
    NodeLeaves,
    NotChosen,
    Placed,
    Say,
    StopAsked,
    Tick,
)
from workers.driver.hang import judge_hang
from workers.driver.placing import no_room, not_up, placed, registered, seated
from workers.driver.progress import measured, reach, round_started
from workers.driver.settle import LookAgain, settle
from workers.driver.state import Outcome, Round, Stage, State
from workers.driver.transitions import (
    CLOSE_SECONDS,
    Next,
    choose,
    close,
    closed,
    fail,
    order_round,
    over,
    start_attempt,
)


def begin(request: LaunchRequest, now: float) -> Next:
    """Return the first state: what is left of an earlier generation's lease is waited for."""
    state = State(
        request=request,
        stage=Stage.WAITING,
        began_at=now,
        until=now + request.wait_seconds,
        counters=request.counters,
        furthest=request.counters.furthest_step,
    )
    said = Say(
        kind=EventKind.DRIVER_STARTED,
        message=f"driver of generation {request.generation}, {request.world_size} workers",
        data={"wait_seconds": request.wait_seconds},
    )
    return state, (said,)


def advance(state: State, given: Input, now: float) -> Next:
    """Take one input. What belongs to an earlier attempt, or comes after the end, changes nothing."""
    if state.stage is Stage.OVER:
        return state, ()
    match given:
        case AgentSaid(attempt=attempt, message=message):
            return _agent_said(state, message, now) if attempt == state.attempt else (state, ())
        case Heard(attempt=attempt, silent_seconds=silent):
            if attempt != state.attempt:
                return state, ()
            heard = {rank: now - seconds for rank, seconds in silent.items()}
            return _look(replace(state, heard_at=heard), now)
        case Placed(attempt=attempt):
            return placed(state, now) if attempt == state.attempt else (state, ())
        case AttemptEnded():
            return _attempt_ended(state, given, now) if given.attempt == state.attempt else (state, ())
        case Chosen():
            return order_round(state, given, now) if state.stage is Stage.CHOOSING else (state, ())
        case NotChosen(reason=reason):
            return fail(state, Verdict(failure_class=FailureClass.CONFIG, summary=f"config: {reason}"), now)
        case StopAsked(reason=reason, lost=lost):
            if isinstance(state.after_close, Outcome):
                return state, ()  # it ends already, and its own end counts
            return close(state, Outcome(phase="lost" if lost else "stopped", reason=reason), now)
        case NodeLeaves(attempt=attempt, node_id=node_id):
            here = [rank for rank, agent in state.agents.items() if agent.node_id == node_id]
            if attempt != state.attempt or not here:
                return state, ()
            return leave_node(state, min(here), "is on a node that Ray drains", now)
        case LeaveAsked(reason=reason):
            return leave_for_good(state, reason, now)
        case Tick():
            return _look(state, now)
        case _:
            assert_never(given)


def _look(state: State, now: float) -> Next:
    """Do what is due because time has passed."""
    if state.stage is Stage.TRAINING:
        return _judge(state, now)
    if state.until is None or now < state.until:
        return state, ()
    match state.stage:
        case Stage.WAITING:
            return start_attempt(state, now)
        case Stage.PLACING:
            return fail(state, not_up(state), now)
        case Stage.HOLDING:
            return choose(state)
        case Stage.CLOSING:
            outcome = state.after_close
            if not isinstance(outcome, Outcome):
                outcome = Outcome(
                    phase="lost", reason=f"the worker group did not end within {CLOSE_SECONDS:g} s"
                )
            return over(state, outcome)
        case _:
            return state, ()


def _agent_said(state: State, message: AgentMessage, now: float) -> Next:
    match message:
        case Seated():
            return seated(state, message), ()
        case Registered():
            return registered(state, message, now)
        case StoreMoved():
            return _store_moved(state, message, now)
        case Said(message=Told() as told):
            return state, (_tell(state, message, told),)
        case Said(message=Measured(sample=sample)) if not _is_current(state, message):
            return state, (Forward(sample=sample),)
        case Started() | Said() | Stalled() | Noticed() | Holds() | Ended():
            if state.stage is not Stage.TRAINING or not _is_current(state, message):
                return state, ()
            return _round_said(state, message, now)
        case _:
            assert_never(message)


def _store_moved(state: State, moved: StoreMoved, now: float) -> Next:
    """The next round meets at the new address; one whose ranks have not met yet would wait at the old one in vain."""
    agent = state.agents[moved.rank].model_copy(update={"store_address": moved.store_address})
    state = replace(state, agents={**state.agents, moved.rank: agent})
    round_ = state.round
    if state.stage is not Stage.TRAINING or round_ is None or len(round_.ready) == len(state.agents):
        return state, ()
    verdict = Verdict(
        failure_class=FailureClass.RENDEZVOUS,
        summary=f"rendezvous: the store on {agent.node} died while the ranks were to meet there",
        node=agent.node,
        phase="start",
    )
    return fail(state, verdict, now)


def _is_current(state: State, message: Started | Said | Stalled | Noticed | Holds | Ended) -> bool:
    return state.round is not None and message.round == state.round.order.round


def _tell(state: State, said: Said, told: Told) -> Say:
    return Say(
        kind=told.kind,
        message=told.message,
        attempt=state.attempt,
        round=said.round,
        rank=said.rank,
        step=told.step,
        data=told.data,
    )


def _round_said(
    state: State, message: Started | Said | Stalled | Noticed | Holds | Ended, now: float
) -> Next:
    round_ = state.round
    assert round_ is not None
    match message:
        case Started(rank=rank, pid=pid):
            round_ = replace(round_, pids={**round_.pids, rank: pid})
            said = (round_started(state, round_),) if len(round_.pids) == len(state.agents) else ()
            return replace(state, round=round_), said
        case Said(rank=rank, message=Ready(seconds=seconds)):
            return replace(state, round=replace(round_, ready={**round_.ready, rank: seconds})), ()
        case Said(message=Measured(sample=sample)):
            return measured(state, round_, sample, now)
        case Said(rank=rank, message=Done(result=result)):
            return _done(replace(state, round=replace(round_, done={**round_.done, rank: result})), now)
        case Said(rank=rank, message=Left() as gone):
            return left(state, rank, gone, now)
        case Noticed(rank=rank):
            return leave_node(state, rank, "was told to leave (SIGTERM)", now)
        case Holds(rank=rank, step=step):
            return holds(state, rank, step)
        case Stalled(rank=rank):
            stalled_at = {**round_.stalled_at, rank: now}
            round_ = replace(round_, stalls={**round_.stalls, rank: message}, stalled_at=stalled_at)
            return _judge(replace(state, round=round_), now)
        case Ended(ending=ending):
            if ending.ordered or message.rank not in _at_work(state, round_):
                return state, ()
            round_ = replace(round_, endings=(*round_.endings, ending), seen_at=(*round_.seen_at, now))
            state = reach(replace(state, round=round_), (ending.step or 1) - 1)
            return _judge(replace(state, fault_at=state.fault_at or now), now)
        case _:
            return state, ()


def _done(state: State, now: float) -> Next:
    round_ = state.round
    assert round_ is not None
    if len(round_.done) < len(state.agents):
        return state, ()
    result = round_.done[min(round_.done)].model_copy(
        update={"replayed_steps": state.replayed, "seconds": now - state.began_at}
    )
    state = reach(replace(state, fault_at=None), result.final_step)
    return close(state, Outcome(phase="finished", reason="every rank is done", result=result), now)


def _judge(state: State, now: float) -> Next:
    """Look whether the round in work has failed."""
    round_ = state.round
    assert round_ is not None
    if not round_.endings:
        return _judge_silence(state, now)
    judged = settle(
        endings=round_.endings,
        seen_at=round_.seen_at,
        heard_at=state.heard_at,
        nodes=_at_work(state, round_),
        lease_seconds=state.request.lease_seconds,
        now=now,
    )
    if isinstance(judged, LookAgain):
        return replace(state, until=judged.at), ()
    return break_off(state, judged, now)


def _at_work(state: State, round_: Round) -> Mapping[int, str]:
    """The nodes of the ranks that are still to end."""
    gone = {*round_.done, *(round_.drain.left if round_.drain is not None else ())}
    return {rank: node for rank, node in state.nodes.items() if rank not in gone}


def _judge_silence(state: State, now: float) -> Next:
    """An agent that is not heard for a lease has ended its rank, or is about to; one that is heard may tell of a hang."""
    lease = state.request.lease_seconds
    silent = [rank for rank, at in state.heard_at.items() if now - at > lease and rank in state.agents]
    if not silent:
        return _judge_standstill(state, now)
    agent = state.agents[min(silent)]
    verdict = Verdict(
        failure_class=FailureClass.AGENT_LOST,
        summary=f"agent_lost: the agent of rank {agent.rank} on {agent.node} was not heard for {lease:g} s",
        first_rank=agent.rank,
        node=agent.node,
        step=state.step,
    )
    return break_off(state, verdict, now, confirmed=False)


def _judge_standstill(state: State, now: float) -> Next:
    round_ = state.round
    assert round_ is not None
    verdict = judge_hang(
        round_.stalls,
        round_.stalled_at,
        nodes=_at_work(state, round_),
        hang_seconds=state.request.config.failure.hang_seconds,
        now=now,
    )
    return (replace(state, until=None), ()) if verdict is None else break_off(state, verdict, now)


def _attempt_ended(state: State, ended: AttemptEnded, now: float) -> Next:
    if state.stage is Stage.CLOSING:
        return closed(state, now)
    if state.stage is Stage.PLACING and ended.not_placed:
        return fail(state, no_room(state), now, gone=True)
    agent = state.agents.get(ended.rank) if ended.rank is not None else None
    who = f"the agent of rank {agent.rank} on {agent.node}" if agent else "the worker group"
    verdict = Verdict(
        failure_class=FailureClass.AGENT_LOST,
        summary=f"agent_lost: {who} ended: {ended.error or 'nobody told it to'}",
        first_rank=ended.rank,
        node=agent.node if agent else "",
        step=state.step if state.round is not None else None,
        consequences=tuple(sorted({e.rank for e in state.round.endings})) if state.round is not None else (),
    )
    return break_off(state, verdict, now, confirmed=ended.nodes_alive, gone=True)
