"""The moves of a generation: start an attempt, order a round, fail, close, end. Pure; `rounds` decides when."""

from dataclasses import replace
from typing import Final, Literal

from workers.contract.events import EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.contract.launch import LaunchRequest, RoundOrder
from workers.contract.restart import Action, Restart, decide
from workers.contract.rundir import logs_dir
from workers.driver.effects import Choose, Chosen, Condemn, Effect, Post, Say, StartAttempt
from workers.driver.state import Outcome, Round, Stage, State

CLOSE_SECONDS: Final = 20.0  # for a worker group to end after it was told to
PLACEMENT_GRACE_SECONDS: Final = (
    15.0  # Ray Train gives up by itself in time, counted from when its controller runs
)
Next = tuple[State, tuple[Effect, ...]]


def start_attempt(state: State, now: float) -> Next:
    """Ask for a new worker group."""
    attempt = state.attempt + 1
    state = replace(
        state,
        stage=Stage.PLACING,
        attempt=attempt,
        next_round=0,
        agents={},
        is_placed=False,
        seats={},
        heard_at={},
        round=None,
        until=now + state.request.placement_seconds + PLACEMENT_GRACE_SECONDS,
        after_close=0.0,
    )
    said = Say(
        kind=EventKind.ATTEMPT_STARTED, message=f"asks Ray for {gang_of(state.request)}", attempt=attempt
    )
    return state, (said, StartAttempt(attempt=attempt))


def gang_of(request: LaunchRequest) -> str:
    """Say what an attempt asks Ray for: `2 workers x 1 CPU`."""
    gpus = f" + {request.gpus_per_worker} GPU" if request.gpus_per_worker else ""
    return f"{request.world_size} workers x {request.config.scaling.cpus_per_worker} CPU{gpus}"


def choose(state: State) -> Next:
    """Look for the checkpoint that the next round resumes from."""
    asked = state.request.resume_from if state.attempt == 0 and state.next_round == 0 else None
    return replace(state, stage=Stage.CHOOSING, until=None), (Choose(name=asked),)


def order_round(state: State, chosen: Chosen, now: float) -> Next:
    """Order a round from the chosen checkpoint; the agents end what they still run."""
    order = RoundOrder(
        attempt=state.attempt,
        round=state.next_round,
        nonce=chosen.nonce,
        resume_from=chosen.resume_from,
        resume_run=chosen.run,
        store_address=state.store_address,
    )
    state = replace(
        state,
        stage=Stage.TRAINING,
        until=None,
        next_round=state.next_round + 1,
        replayed=state.replayed + max(0, state.step - chosen.step),
        step=chosen.step,
        round=Round(order=order, resume_step=chosen.step, reached=chosen.step, ordered_at=now),
    )
    return state, (Post(order=order),)


def fail(state: State, verdict: Verdict, now: float, *, confirmed: bool = True, gone: bool = False) -> Next:
    """Do what follows a failure. `gone`: the worker group has ended already.

    Not `confirmed`: what was lost may still run somewhere until its lease is over, so the next attempt waits that long.
    """
    decision = decide(
        verdict=verdict,
        counters=state.counters,
        reached_step=state.furthest,
        max_failures=state.request.config.failure.max_failures,
    )
    effects = _failure_effects(state, verdict, decision)
    goes_back = decision.action is Action.GENERATION  # who grants the next one decides and counts
    state = replace(
        state,
        counters=state.counters if goes_back else decision.counters,
        fault_at=state.fault_at if state.fault_at is not None else now,
    )
    delay = decision.delay_seconds if confirmed else max(decision.delay_seconds, state.request.lease_seconds)
    match decision.action:
        case Action.ROUND if not gone and state.stage is Stage.TRAINING:
            state, more = _next_round(state, delay, now)
        case Action.ROUND | Action.ATTEMPT:
            state, more = close(state, delay, now, gone=gone)
        case Action.GENERATION:
            state, more = close(
                state, Outcome(phase="not_placed", reason=verdict.summary, verdict=verdict), now, gone=gone
            )
        case Action.FAIL:
            outcome = Outcome(phase="failed", reason=decision.reason, verdict=verdict)
            state, more = close(state, outcome, now, gone=gone)
    return state, (*effects, *more)


def _failure_effects(state: State, verdict: Verdict, decision: Restart) -> tuple[Effect, ...]:
    number = state.round.order.round if state.round is not None else None
    failed = Say(
        kind=EventKind.ATTEMPT_FAILED
        if number is None or decision.action is Action.ATTEMPT
        else EventKind.ROUND_FAILED,
        message=verdict.summary,
        attempt=state.attempt,
        round=number,
        rank=verdict.first_rank,
        step=verdict.step,
        data={"verdict": verdict.model_dump(mode="json"), "logs": str(logs_dir(state.request.run_dir))},
    )
    effects: list[Effect] = [failed]
    if verdict.failure_class is FailureClass.CHECKPOINT_DAMAGED and verdict.culprit:
        effects.append(Condemn(checkpoint=verdict.culprit))
    if decision.action not in (Action.FAIL, Action.GENERATION):
        data = {
            "action": decision.action.value,
            "reason": verdict.failure_class.value,
            "charged": decision.charged,
            "delay_seconds": decision.delay_seconds,
            "counters": decision.counters.model_dump(),
        }
        effects.append(
            Say(
                kind=EventKind.RESTART,
                message=decision.reason,
                attempt=state.attempt,
                round=number,
                data=data,
            )
        )
    return tuple(effects)


def _next_round(state: State, delay: float, now: float) -> Next:
    if delay <= 0:
        return choose(state)
    held = replace(state, stage=Stage.HOLDING, until=now + delay)
    return held, (Post(order=_idle_order(state, action="hold")),)


def close(state: State, after: Outcome | float, now: float, *, gone: bool = False) -> Next:
    """End the worker group, then the generation (an `Outcome`) or wait so many seconds for the next attempt.

    Where nobody has registered there is nothing to wait for: the group dies with the driver.
    """
    state = replace(state, after_close=after)
    nobody = gone or state.stage is Stage.WAITING
    if nobody or (not state.agents and isinstance(after, Outcome)):
        return closed(state, now)
    if state.stage is Stage.CLOSING:
        return state, ()
    state = replace(state, stage=Stage.CLOSING, until=now + CLOSE_SECONDS)
    return state, (Post(order=_idle_order(state, action="stop")),)


def closed(state: State, now: float) -> Next:
    """Go on after the worker group has ended."""
    if isinstance(state.after_close, Outcome):
        return over(state, state.after_close)
    return replace(state, stage=Stage.WAITING, until=now + state.after_close), ()


def over(state: State, outcome: Outcome) -> Next:
    """End the generation."""
    return replace(state, stage=Stage.OVER, until=None, outcome=outcome), ()


def _idle_order(state: State, action: Literal["hold", "stop"]) -> RoundOrder:
    return RoundOrder(
        attempt=state.attempt,
        round=state.next_round,
        nonce="0" * 8,
        resume_from=None,
        store_address=state.store_address,
        action=action,
    )
