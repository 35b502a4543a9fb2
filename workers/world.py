"""`World`: the ranks of one round, met. Knows torch.distributed, nothing of models or files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from workers.contract.launch import RankOrder
from workers.errors import CollectiveError, RendezvousError

MEET_SECONDS: Final = 60.0  # how long a rank waits for the others at the start of a round
COLLECTIVE_SECONDS: Final = 1800.0  # longest silence inside a collective; the driver sees a hang long before


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One rank's place among the others. Every method is a collective: all ranks call it, in the same order."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup  # trains: gloo on the CPU, NCCL on CUDA
    checkpoint_group: dist.ProcessGroup  # gloo, for the saver's thread alone
    store: Store  # of this round: words between ranks that are no collective

    def sum_over_ranks(self, values: Sequence[int]) -> list[int]:
        """Add integers up over the ranks, position by position."""
        total = torch.tensor(list(values), dtype=torch.int64, device=self.device)
        dist.all_reduce(total, group=self.group)
        return [int(value) for value in total.tolist()]

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """Return every rank's integers, by rank. All ranks give equally many."""
        mine = torch.tensor(list(values), dtype=torch.int64, device=self.device)
        everyone = torch.empty(self.world_size * len(values), dtype=torch.int64, device=self.device)
        dist.all_gather_single(everyone, mine, group=self.group)
        return [[int(value) for value in row] for row in everyone.view(self.world_size, -1).tolist()]


def join_world(order: RankOrder) -> World:
    """Meet the other ranks of this round. Every rank calls it once. Raises RendezvousError, CollectiveError."""
    round_ = order.round
    return meet(
        store_address=round_.store_address,
        prefix=f"a{round_.attempt}r{round_.round}-{round_.nonce}",
        rank=order.rank,
        world_size=order.world_size,
        device=torch.device(order.device),
        network_interface=order.network_interface,
    )


def meet(
    *,
    store_address: str,
    prefix: str,
    rank: int,
    world_size: int,
    device: torch.device,
    network_interface: str = "",
    seconds: float = MEET_SECONDS,
) -> World:
    """Join the process groups of `world_size` ranks that share `prefix` on a running TCPStore, and test the backend.

    `prefix` keeps rounds apart on a store that outlives them. Raises RendezvousError within about `seconds` if
    somebody is missing (who, by rank, is in the message), CollectiveError if the backend computes something else.
    """
    if network_interface:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = network_interface
    store = _wait_for_all(store_address, prefix, rank, world_size, timedelta(seconds=seconds))
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=COLLECTIVE_SECONDS)
    try:
        dist.init_process_group(
            "nccl" if on_cuda else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            device_id=device if on_cuda else None,
        )
        checkpoint_group = dist.new_group(backend="gloo", timeout=timeout)
    except RuntimeError as error:
        raise RendezvousError(f"rank {rank} could not open its process group: {error}") from error
    group = dist.group.WORLD
    assert group is not None
    assert checkpoint_group is not None
    world = World(
        rank=rank,
        world_size=world_size,
        device=device,
        group=group,
        checkpoint_group=checkpoint_group,
        store=store,
    )
    _test_collectives(world)
    return world


def leave_world() -> None:
    """Close the process groups. Only after everything went well: with a peer gone it might wait for it."""
    dist.destroy_process_group()


def _wait_for_all(address: str, prefix: str, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Say that this rank is here and wait until all are; so a missing rank is named instead of a socket."""
    host, _, port = address.rpartition(":")
    here = [f"here-{r}" for r in range(world_size)]
    try:
        tcp = dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch does not mark it as such
            host, int(port), is_master=False, wait_for_workers=False, timeout=timeout
        )
        store = PrefixStore(prefix, tcp)
        store.set(here[rank], "1")
    except RuntimeError as error:
        raise RendezvousError(f"rank {rank} cannot reach the store at {address}: {error}") from error
    try:
        store.wait(here, timeout)
    except RuntimeError as error:
        missing = [r for r in range(world_size) if not store.check([here[r]])]
        raise RendezvousError(
            f"rank {rank} waited {timeout.total_seconds():.0f} s at {address} for ranks {missing} of {world_size}"
        ) from error
    return store


def _test_collectives(world: World) -> None:
    """Check that the backend computes what it says, in each collective that engines use. Raises CollectiveError.

    Some versions of gloo returned the sum for an average in reduce-scatter (pytorch/pytorch#162338): gradients N times
    too large, and no error. Costs five collectives of a few bytes.
    """
    size, rank = world.world_size, world.rank
    total, mean = sum(range(1, size + 1)), (size + 1) / 2
    mine = torch.full((1,), rank + 1.0, device=world.device)
    for name, operation, expected in (
        ("sum", dist.ReduceOp.SUM, total),
        ("average", dist.ReduceOp.AVG, mean),
    ):
        received = torch.empty(1, device=world.device)
        dist.reduce_scatter_single(received, mine.repeat(size), op=operation, group=world.group)
        _check_collective(f"reduce-scatter with {name}", received, [expected], size)
    for name, operation, expected in (
        ("sum", dist.ReduceOp.SUM, total),
        ("maximum", dist.ReduceOp.MAX, size),
    ):
        received = mine.clone()
        dist.all_reduce(received, op=operation, group=world.group)
        _check_collective(f"all-reduce with {name}", received, [expected], size)
    gathered = torch.empty(size, device=world.device)
    dist.all_gather_single(gathered, mine, group=world.group)
    _check_collective("all-gather", gathered, [r + 1.0 for r in range(size)], size)


def _check_collective(what: str, received: torch.Tensor, expected: Sequence[float], world_size: int) -> None:
    found = received.tolist()
    if found != list(expected):
        wanted, got = (values[0] if len(values) == 1 else list(values) for values in (expected, found))
        raise CollectiveError(
            f"{what} gave {got} instead of {wanted} over {world_size} ranks: "
            "this backend would train with wrong gradients"
        )
