"""Who starts, how wide, and what the others are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.admission import Ask, Grant, Wait, admit
from orchestrator.cluster import Capacity, Node
from orchestrator.gang import Gang


def cluster(*cpus: int, gpus: int = 0) -> Capacity:
    nodes = (
        Node(node_id=f"n{i}", address=f"127.0.0.{i + 2}", cpus=count, gpus=gpus)
        for i, count in enumerate(cpus)
    )
    return Capacity(nodes=tuple(nodes))


def ask(job_id: str, *widths: int, cpus: int = 1, gpus: int | str = 0, delay: float = 0.0) -> Ask:
    return Ask(
        job_id=job_id,
        widths=tuple(sorted(widths, reverse=True)),
        cpus_per_worker=cpus,
        gpus_per_worker=gpus,  # type: ignore[arg-type]
        delay_seconds=delay,
    )


def gang(workers: int, cpus: int = 1, gpus: int = 0) -> Gang:
    return Gang(workers=workers, cpus_per_worker=cpus, gpus_per_worker=gpus)


def test_a_job_gets_the_widest_width_that_fits_now() -> None:
    (decision,) = admit([ask("a", 1, 2, 4, 8)], capacity=cluster(4, 2), held=[gang(1)])
    assert decision == Grant(job_id="a", gang=gang(4))


def test_of_two_jobs_that_exceed_the_cluster_one_runs_and_the_rest_wait_their_turn() -> None:  # B087
    first, second, small = admit([ask("a", 3), ask("b", 3), ask("c", 1)], capacity=cluster(4), held=[])
    assert first == Grant(job_id="a", gang=gang(3))
    assert second == Wait(
        job_id="b", reason="waits for 3 workers x 1 CPU: 1 of 4 CPUs free; first in the queue"
    )
    assert isinstance(small, Wait)
    assert small.reason == "waits behind b: place 3 in the queue, first come, first served"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (ask("a", 2, cpus=1000), "unschedulable: needs 2 workers x 1000 CPUs, the largest node has 2 CPUs"),
        (ask("a", 1, gpus=1), "unschedulable: needs 1 worker x 1 CPU and 1 GPU, the largest node has 2 CPUs and 0 GPUs"),
        (ask("a", 9), "unschedulable: needs 9 workers x 1 CPU, the cluster holds 4 such workers at most"),
    ],
)  # fmt: skip
def test_what_the_cluster_cannot_hold_is_said_so_and_blocks_nobody(asked: Ask, reason: str) -> None:  # B102
    never, other = admit([asked, ask("b", 1)], capacity=cluster(2, 2), held=[])
    assert never == Wait(job_id="a", reason=reason, is_unschedulable=True)
    assert isinstance(other, Grant)


def test_an_unschedulable_job_starts_once_capacity_is_added() -> None:  # B102
    wanted = ask("a", 2, cpus=4)
    assert isinstance(admit([wanted], capacity=cluster(4), held=[])[0], Wait)
    assert isinstance(admit([wanted], capacity=cluster(4, 4), held=[])[0], Grant)


def test_a_worker_is_never_cut_over_two_nodes() -> None:
    (decision,) = admit([ask("a", 1, cpus=3)], capacity=cluster(2, 2), held=[])
    assert isinstance(decision, Wait)


def test_auto_takes_one_gpu_where_the_cluster_has_some() -> None:
    for gpus in (0, 2):
        (decision,) = admit([ask("a", 2, gpus="auto")], capacity=cluster(4, gpus=gpus), held=[])
        assert decision == Grant(job_id="a", gang=gang(2, gpus=min(1, gpus)))


def test_a_job_in_its_back_off_keeps_its_room() -> None:
    resting, other = admit([ask("a", 3, delay=5.0), ask("b", 2)], capacity=cluster(4), held=[])
    assert isinstance(resting, Wait)
    assert "restarts in 5 s" in resting.reason
    assert isinstance(other, Wait)


def test_a_cluster_without_nodes_is_said_to_have_none() -> None:
    (decision,) = admit([ask("a", 1)], capacity=cluster(), held=[])
    assert isinstance(decision, Wait)
    assert decision.reason == "waits for 1 worker x 1 CPU: the cluster has no node"


gangs = st.builds(gang, st.integers(1, 4), st.integers(1, 3))
asks = st.builds(
    lambda widths, cpus: (tuple(sorted(widths, reverse=True)), cpus),
    st.sets(st.integers(1, 6), min_size=1),
    st.integers(1, 3),
)


@given(st.lists(st.integers(0, 8), max_size=4), st.lists(gangs, max_size=3), st.lists(asks, max_size=5))
def test_grants_fit_beside_what_is_held_and_nobody_is_overtaken(
    nodes: list[int], held: list[Gang], wanted: list[tuple[tuple[int, ...], int]]
) -> None:
    capacity = cluster(*nodes)
    asked = [ask(str(i), *widths, cpus=cpus) for i, (widths, cpus) in enumerate(wanted)]
    decisions = admit(asked, capacity=capacity, held=held)
    assert [d.job_id for d in decisions] == [a.job_id for a in asked]
    granted = [d for d in decisions if isinstance(d, Grant)]
    taken = sum(d.gang.workers * d.gang.cpus_per_worker for d in granted)
    in_use = sum(g.workers * g.cpus_per_worker for g in held)
    assert taken <= capacity.cpus
    if granted and in_use <= capacity.cpus and all(g.cpus_per_worker == 1 for g in held):
        assert taken + in_use <= capacity.cpus
    waits = [i for i, d in enumerate(decisions) if isinstance(d, Wait) and not d.is_unschedulable]
    behind = decisions[waits[0] :] if waits else ()
    if capacity.nodes:
        assert not any(isinstance(d, Grant) for d in behind)
    assert all(d.reason for d in decisions if isinstance(d, Wait))
