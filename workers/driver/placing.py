"""An attempt on its way to stand: room found, agents started, agents ready; and what is said when one of these is late. Pure."""

from dataclasses import replace

from workers.agent.messages import Registered, Seated
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass, Verdict
from workers.driver.effects import Say
from workers.driver.state import Stage, State
from workers.driver.transitions import Next, choose, fail, gang_of


def placed(state: State, now: float) -> Next:
    """Ray has set the room aside: from now on it is the nodes that are waited for, and they may take longer."""
    if state.stage is not Stage.PLACING or state.is_placed:
        return state, ()
    return replace(state, is_placed=True, until=now + state.request.start_seconds), ()


def seated(state: State, agent: Seated) -> State:
    """Note that an agent's process runs."""
    return replace(state, seats={**state.seats, agent.rank: agent.node})


def registered(state: State, agent: Registered, now: float) -> Next:
    """Take an agent that stands ready, or says why it never will; with the last one the first round follows."""
    if state.stage is not Stage.PLACING:
        return state, ()
    if agent.problem:
        return fail(state, _unfit(agent), now)
    state = replace(state, agents={**state.agents, agent.rank: agent})
    if len(state.agents) < state.request.world_size:
        return state, ()
    agents = [state.agents[rank] for rank in sorted(state.agents)]
    said = Say(
        kind=EventKind.AGENTS_READY,
        message=f"{len(agents)} agents stand ready",
        attempt=state.attempt,
        data={
            "nodes": {a.rank: a.node for a in agents},
            "agent_pids": {a.rank: a.pid for a in agents},
            "warm_seconds": max(a.seconds for a in agents),
            "cold_modules": sorted({name for a in agents for name in a.cold_modules}),
        },
    )
    state, effects = choose(state)
    return state, (said, *effects)


def _unfit(agent: Registered) -> Verdict:
    failure_class = agent.problem_class or FailureClass.CONFIG
    return Verdict(
        failure_class=failure_class,
        summary=f"{failure_class.value}: the agent of rank {agent.rank} on {agent.node}: {agent.problem}",
        first_rank=agent.rank,
        node=agent.node,
        phase="start",
    )


def not_up(state: State) -> Verdict:
    """Say that the agents did not stand in time, and what of their start is slow."""
    return _slow(state) if state.is_placed or state.seats else no_room(state)


def no_room(state: State) -> Verdict:
    """Say that Ray found no room in time."""
    return Verdict(
        failure_class=FailureClass.NOT_PLACED,
        summary=(
            f"not_placed: Ray found no room for {gang_of(state.request)} "
            f"within {state.request.placement_seconds:g} s: somebody else holds it, or its nodes are still to come"
        ),
    )


def _slow(state: State) -> Verdict:
    request = state.request
    importing = {rank: node for rank, node in state.seats.items() if rank not in state.agents}
    missing = sorted(set(range(request.world_size)) - set(state.seats))
    late = [f"rank {rank} on {node} still imports torch" for rank, node in sorted(importing.items())]
    if missing:
        late.append(f"no process runs yet for {_ranks(missing)}: its environment is still being built")
    first = min(importing, default=None) if not missing else None
    return Verdict(
        failure_class=FailureClass.SLOW_START,
        summary=(
            f"slow_start: {len(state.agents)} of {request.world_size} agents stood ready within "
            f"{request.start_seconds:g} s after Ray had found room: {'; '.join(late)}"
        ),
        first_rank=first,
        node=importing.get(first, "") if first is not None else "",
        phase="start",
    )


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"
