"""Ranks meet, count together, and say who is missing."""

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from workers import world as world_module
from workers.errors import CollectiveError
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher, Seat

pytestmark = pytest.mark.torch


def count_together(world: World) -> tuple[list[int], list[list[int]]]:
    return world.sum_over_ranks([1, world.rank]), world.gather([world.rank, 7])


def test_ranks_sum_and_gather_integers(ranks: "Launcher") -> None:
    results = ranks(count_together, 3)
    assert results == [([3, 3], [[0, 7], [1, 7], [2, 7]])] * 3


def test_one_rank_is_a_world(ranks: "Launcher") -> None:
    assert ranks(count_together, 1) == [([1, 0], [[0, 7]])]


def join_unless_rank_one(seat: "Seat") -> None:
    if seat.rank != 1:
        seat.join(seconds=1.0)


def test_a_rank_that_does_not_come_is_named_by_the_others(ranks: "Launcher") -> None:
    first, absent, third = ranks.start(join_unless_rank_one, 3, join=False).outcomes()
    assert absent.error_type is None
    for outcome in (first, third):
        assert outcome.error_type == "RendezvousError"
        assert "for ranks [1] of 3" in outcome.error


def join_a_store_that_is_not_there(seat: "Seat") -> None:
    seat.join(store_address="127.0.0.1:1", seconds=1.0)


def test_a_store_that_is_not_there_is_a_rendezvous_error(ranks: "Launcher") -> None:
    (outcome,) = ranks.start(join_a_store_that_is_not_there, 1, join=False).outcomes()
    assert outcome.error_type == "RendezvousError"
    assert "127.0.0.1:1" in outcome.error


def join_over_a_lying_backend(seat: "Seat", collective: str) -> str:
    honest = getattr(dist, collective)

    def lying(output: torch.Tensor, *given: torch.Tensor, **options: Any) -> Any:
        if collective == "reduce_scatter_single":
            return honest(output, *given, **(options | {"op": dist.ReduceOp.SUM}))
        honest(output, *given, **options)
        return output.mul_(2)

    setattr(world_module.dist, collective, lying)
    try:
        seat.join()
    except CollectiveError as error:
        return str(error)
    return "not noticed"


@pytest.mark.parametrize(
    ("collective", "message"),
    [
        ("reduce_scatter_single", "reduce-scatter with average gave 3.0 instead of 1.5"),
        ("all_reduce", "all-reduce with sum gave 6.0 instead of 3"),
        ("all_gather_single", "all-gather gave [2.0, 4.0] instead of [1.0, 2.0]"),
    ],
)
def test_a_backend_that_computes_something_else_is_refused(
    ranks: "Launcher", collective: str, message: str
) -> None:
    """B151: a sum where an average was asked for, and its like in the other collectives."""
    for found in ranks(join_over_a_lying_backend, 2, collective, join=False):
        assert message in found


def wait_for_the_others(world: World) -> None:
    dist.barrier()
    dist.barrier()
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_killed_rank_frees_the_others_from_their_collective(ranks: "Launcher") -> None:
    killed, other = ranks.start(wait_for_the_others, 2).outcomes()
    assert killed.exit_code == -9
    assert other.error_type is not None
