"""What a round in work shows of itself: started, furthest step, first step. Pure."""

from dataclasses import replace
from typing import Any

from workers.contract.events import EventKind, Sample
from workers.contract.rundir import logs_dir
from workers.driver.effects import Forward, Say
from workers.driver.state import Round, State
from workers.driver.transitions import Next


def round_started(state: State, round_: Round) -> Say:
    """Say that every rank of the round is forked."""
    order = round_.order
    where = order.resume_from or "the start"
    return Say(
        kind=EventKind.ROUND_STARTED,
        message=f"round {order.round} from {where}",
        attempt=order.attempt,
        round=order.round,
        step=round_.resume_step,
        data={
            "pids": dict(round_.pids),
            "nodes": dict(state.nodes),
            "resume_from": order.resume_from,
            "resume_run": order.resume_run,
            "lost_steps": state.replayed,
            "logs": str(logs_dir(state.request.run_dir)),
        },
    )


def reach(state: State, step: int) -> State:
    """Note that `step` steps are finished."""
    assert state.round is not None
    reached = max(state.round.reached, step)
    return replace(
        state,
        round=replace(state.round, reached=reached),
        step=max(state.step, reached),
        furthest=max(state.furthest, reached),
    )


def measured(state: State, round_: Round, sample: Sample, now: float) -> Next:
    """Take a sample of the round in work; the first one proves its first optimizer step."""
    state = reach(state, sample.step)
    assert state.round is not None
    if round_.stepped:
        return state, (Forward(sample=sample),)
    data: dict[str, Any] = {
        "seconds_since_order": now - round_.ordered_at,
        "rank_seconds": dict(round_.ready.get(sample.rank, {})),
    }
    if state.fault_at is not None:
        data["seconds_since_fault"] = now - state.fault_at
    said = Say(
        kind=EventKind.FIRST_STEP,
        message=f"first step of round {round_.order.round}"
        + (f", {now - state.fault_at:.2f} s after the failure" if state.fault_at is not None else ""),
        attempt=state.attempt,
        round=round_.order.round,
        rank=sample.rank,
        step=sample.step,
        data=data,
    )
    state = replace(state, round=replace(state.round, stepped=True), fault_at=None)
    return state, (said, Forward(sample=sample))
