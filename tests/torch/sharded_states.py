"""A state with every awkward layout, for checkpoint tests. Children import it by name."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from workers.checkpointing.save import Author, Saver
from workers.contract.manifest import ResumePoint
from workers.engines.flat_shard import FlatShard

State = dict[str, torch.Tensor]


def full_state(step: int) -> State:
    """Return the whole tensors of a step: other values at each step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "model.even": random(12, 3),
        "model.uneven": random(7, 2, 2),
        "model.one_row": random(1, 5),  # fewer rows than ranks
        "model.empty": torch.zeros(0, 4),
        "model.no_columns": torch.zeros(5, 0),
        "model.half": random(9, 3).bfloat16(),
        "model.scalar": random(1)[0],
        "model.replicated": random(4, 4),
        "buffer.whole": random(3),
        "optimizer.even.exp_avg": random(12, 3),
        "optimizer.even.step": torch.tensor(float(step)),
    }


def lay_out(full: State, world_size: int) -> State:
    """Shard every tensor by rows over the ranks, but scalars, buffers and what is called replicated. Collective."""
    mesh = init_device_mesh("cpu", (world_size,))
    state: State = {}
    for name, tensor in full.items():
        if tensor.dim() == 0 or name.startswith("buffer."):
            state[name] = tensor.clone()
        else:
            placement = Replicate() if name == "model.replicated" else Shard(0)
            state[name] = distribute_tensor(tensor.clone(), mesh, [placement])
    return state


def gathered(state: State) -> State:
    """Return the whole tensors of a laid-out state. Collective."""
    return {name: _whole(tensor) for name, tensor in state.items()}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FlatShard):
        whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
        whole.view(-1)[tensor.start : tensor.start + tensor.local.numel()] = tensor.local
        torch.distributed.all_reduce(whole)
        return whole
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def overwrite(state: State, full: State) -> None:
    """Write other values into the live tensors, as training does. Collective."""
    with torch.no_grad():
        for name, tensor in state.items():
            whole = full[name]
            if isinstance(tensor, FlatShard):
                whole = whole.view(-1)[tensor.start : tensor.start + tensor.local.numel()]
                tensor = tensor.local
            if isinstance(tensor, DTensor):
                whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            tensor.copy_(whole)


def same(one: State, other: State) -> bool:
    """Whether two whole states are bitwise equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def resume_at(step: int) -> ResumePoint:
    """Return the resume point after `step` steps."""
    return ResumePoint(
        step=step, next_index=step * 8, seed=0, tokens_seen=0, data_digest="data", config_digest="config"
    )


def make_saver(world: Any, run_dir: str, **changes: Any) -> Saver:
    """Return a saver of round 0; rank 0's messages are dropped unless `emit` is given."""
    round_ = changes.pop("round_", 0)
    arguments: dict[str, Any] = {
        "run_dir": run_dir,
        "author": Author(generation=0, attempt=0, round=round_, nonce=f"{round_:08x}"),
        "world": world,
        "keep": 3,
        "emit": lambda _: None,
        "parent": None,
    }
    return Saver(**(arguments | changes))
