"""`admit`: who starts now, how wide, and what everybody else waits for. First come, first served.

A job that waits for others to end holds up those behind it, so that it is never overtaken for ever; a job that
the whole cluster could not hold is passed over, and admitted by itself once capacity is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.cluster import Capacity, Node
from orchestrator.gang import Gang, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a job wants. Asks are given in their order of submission."""

    job_id: str
    widths: tuple[int, ...]  # allowed world sizes, widest first
    cpus_per_worker: int
    gpus_per_worker: int | Literal["auto"]  # auto: 1 where the cluster has GPUs, else 0
    delay_seconds: float = 0.0  # of its back-off: its room is kept, but it does not start yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The job starts now, as this gang."""

    job_id: str
    gang: Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The job waits, and for this."""

    job_id: str
    reason: str
    is_unschedulable: bool = False


def admit(asks: Sequence[Ask], *, capacity: Capacity, held: Sequence[Gang]) -> tuple[Grant | Wait, ...]:
    """Decide over every ask, in their order. `held` is what running jobs have.

    Ray places gangs, so where the held ones lie is not known: they are packed as Ray packs, and a grant that Ray
    cannot place after all comes back `not_placed`, uncharged.
    """
    free = _empty(capacity.nodes)
    for gang in sorted(held, key=lambda gang: (-gang.gpus_per_worker, -gang.cpus_per_worker)):
        _take(free, gang)
    decisions: list[Grant | Wait] = []
    blocking: str | None = None
    for position, ask in enumerate(asks, start=1):
        gpus = _resolve_gpus(ask, capacity)
        smallest = Gang(workers=ask.widths[-1], cpus_per_worker=ask.cpus_per_worker, gpus_per_worker=gpus)
        if _room(_empty(capacity.nodes), smallest) < smallest.workers:
            decisions.append(_unschedulable(ask, smallest, capacity))
        elif blocking is not None:
            reason = f"waits behind {blocking}: place {position} in the queue, first come, first served"
            decisions.append(Wait(job_id=ask.job_id, reason=reason))
        elif _room(free, smallest) < smallest.workers:
            blocking = ask.job_id
            decisions.append(Wait(job_id=ask.job_id, reason=_shortage(smallest, free, capacity)))
        elif ask.delay_seconds > 0:
            _take(free, smallest)
            reason = f"restarts in {ask.delay_seconds:.0f} s, after a failure without progress"
            decisions.append(Wait(job_id=ask.job_id, reason=reason))
        else:
            room = _room(free, smallest)
            gang = replace(smallest, workers=next(width for width in ask.widths if width <= room))
            _take(free, gang)
            decisions.append(Grant(job_id=ask.job_id, gang=gang))
    return tuple(decisions)


def _resolve_gpus(ask: Ask, capacity: Capacity) -> int:
    return ask.gpus_per_worker if ask.gpus_per_worker != "auto" else min(1, capacity.gpus)


@dataclass(slots=True, kw_only=True)
class _Free:
    """What is left of a node; lives within one call of `admit`."""

    cpus: int
    gpus: int

    def room(self, gang: Gang) -> int:
        by_cpu = max(0, self.cpus) // gang.cpus_per_worker
        by_gpu = max(0, self.gpus) // gang.gpus_per_worker if gang.gpus_per_worker else by_cpu
        return min(by_cpu, by_gpu)


def _empty(nodes: Sequence[Node]) -> list[_Free]:
    return [_Free(cpus=node.cpus, gpus=node.gpus) for node in nodes]


def _room(free: Sequence[_Free], gang: Gang) -> int:
    return sum(node.room(gang) for node in free)


def _take(free: Sequence[_Free], gang: Gang) -> None:
    """Pack the gang, fullest node first; what finds no place (a node was lost) is left out."""
    left = gang.workers
    for node in sorted(free, key=lambda node: (node.room(gang), node.cpus)):
        placed = min(left, node.room(gang))
        node.cpus -= placed * gang.cpus_per_worker
        node.gpus -= placed * gang.gpus_per_worker
        left -= placed


def _shortage(gang: Gang, free: Sequence[_Free], capacity: Capacity) -> str:
    cpus = f"{max(0, sum(node.cpus for node in free))} of {counted(capacity.cpus, 'CPU')} free"
    gpus = (
        f", {max(0, sum(node.gpus for node in free))} of {counted(capacity.gpus, 'GPU')} free"
        if gang.gpus_per_worker
        else ""
    )
    return f"waits for {gang}: {cpus}{gpus}; first in the queue"


def _unschedulable(ask: Ask, gang: Gang, capacity: Capacity) -> Wait:
    if not capacity.nodes:
        return Wait(job_id=ask.job_id, reason=f"waits for {gang}: the cluster has no node")
    cpus = max(node.cpus for node in capacity.nodes)
    gpus = max(node.gpus for node in capacity.nodes)
    largest = f"the largest node has {counted(cpus, 'CPU')}" + (
        f" and {counted(gpus, 'GPU')}" if gang.gpus_per_worker else ""
    )
    room = _room(_empty(capacity.nodes), gang)
    fits = f"the cluster holds {counted(room, 'such worker')} at most" if room else largest
    return Wait(job_id=ask.job_id, reason=f"unschedulable: needs {gang}, {fits}", is_unschedulable=True)
