"""Small tasks with every oddity that users' modules have, their data, and a plain one-process trainer to compare with."""

import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from workers.contract.batch import BatchPlan, plan_batch
from workers.contract.config import TrainingConfig
from workers.engines import WeightedBatch
from workers.random_streams import seed_streams, stream_seed
from workers.schedule import learning_rate

WIDTH: Final = 6


class Rows:
    """Rows of noise with a target; row i counts 1 to 4 of its 4 positions, so that batches weigh differently."""

    def __init__(self, digest: str = "rows") -> None:
        self.digest = digest

    def __len__(self) -> int:
        return 1000

    def batch(self, ids: Sequence[int]) -> Mapping[str, torch.Tensor]:
        generators = [torch.Generator().manual_seed(int(i)) for i in ids]
        x = torch.stack([torch.randn(4, WIDTH, generator=g) for g in generators])
        counted = torch.tensor([[position <= i % 4 for position in range(4)] for i in ids])
        return {"x": x, "y": x.sum(-1, keepdim=True).sin(), "counted": counted}


class Block(nn.Module):
    """Residual MLP."""

    def __init__(self, inner: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks and a head."""

    def __init__(self, blocks: Sequence[nn.Module] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks if blocks is not None else [Block() for _ in range(3)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TiedNet(Net):
    """One weight is both the first and the last layer; B012."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def shared_layer_net() -> Net:
    """Two blocks share a layer, and one more block is called by nobody; B014."""
    net = Net()
    net.blocks[1].up = net.blocks[0].up
    net.never = Block()
    return net


class UnusedLayerNet(Net):
    """A block in the middle of the list that forward leaves out; B021, B022."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks[2](self.blocks[0](x)))


class UnusedInsideBlock(Block):
    """A trainable layer of a used block that is not used itself."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


class OddSizes(nn.Module):
    """Parameters of shapes (2, 6), (1,), () and (3,): fewer rows than ranks, and none to cut; B025."""

    def __init__(self) -> None:
        super().__init__()
        self.two = nn.Parameter(torch.randn(2, WIDTH))
        self.one = nn.Parameter(torch.randn(1))
        self.scalar = nn.Parameter(torch.tensor(0.7))
        self.three = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = F.linear(F.linear(x, self.two), self.two.t())
        return x + (mixed * self.one + self.three.sum()) * self.scalar


class EmptyLayerBlock(Block):
    """Has a layer without a single weight; B026."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # torch warns of the empty weight
            self.none = nn.Linear(WIDTH, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.none(x).sum(-1, keepdim=True)


def uneven_frozen_net() -> Net:
    """Dims 5 and 7, one block frozen; B030."""
    net = Net([Block(5), Block(7), Block(5)])
    for parameter in net.blocks[1].parameters():
        parameter.requires_grad_(requires_grad=False)
    return net


def wide_net() -> Net:
    """Weights of 1,200 elements at odd places: one block twice, one frozen."""
    twice, frozen = Block(200), Block(201)
    for parameter in frozen.parameters():
        parameter.requires_grad_(requires_grad=False)
    return Net([twice, frozen, twice])


class TableNet(Net):
    """A table that the constructor computes and no checkpoint holds, and a persistent counter; B047."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4).div(3.0).cos().view(1, 4, 1), persistent=False)
        self.register_buffer("counter", torch.tensor(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.table.dtype == torch.float32
        return super().forward(x * self.table.to(x.dtype))


class DropoutNet(Net):
    """Half of the inputs are dropped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mask = F.dropout(torch.ones_like(x), 0.5)
        return super().forward(x * self.mask)


def frozen_net() -> Net:
    """Nothing to train; B019."""
    return Net().requires_grad_(requires_grad=False)


class HouseNet(Net):
    """Tied weights, a frozen half, batch statistics, and a persistent counter; B013, B015, B046."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight
        self.statistics = nn.BatchNorm1d(4)
        self.register_buffer("counter", torch.tensor(7))
        for parameter in self.blocks[1].parameters():
            parameter.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.statistics(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class StatisticsNet(Net):
    """Batch statistics of the data themselves, so that they do not depend on weights; B048."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.statistics(x))


class AlternatingNet(Net):
    """The first layer in even forwards, the second in odd ones; B024."""

    forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.blocks[self.forwards % 2]
        self.forwards += 1
        return self.head(self.blocks[2](chosen(x)))


class RankDependentNet(Net):
    """The first layer on rank 0, the second on the others; B024."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.blocks[min(dist.get_rank(), 1)]
        return self.head(self.blocks[2](chosen(x)))


class Experts(nn.Module):
    """Rows go to one of two layers by their sign; a layer without rows is not called; B024."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, is_first = torch.zeros_like(x), x[:, 0, 0] > 0
        for expert, rows in zip(self.experts, (is_first, ~is_first), strict=True):
            if rows.any():
                out = out.index_put((rows,), expert(x[rows]))
        return x + out


class AdapterBlock(Block):
    """A frozen block beside a trained low-rank path: only matrices are trained; B017, B018."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(requires_grad=False)
        self.reduce = nn.Linear(WIDTH, 2, bias=False)
        self.expand = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + F.dropout(self.expand(self.reduce(x)), 0.1, training=self.training)


def adapter_net() -> Net:
    """Nothing but adapters is trained, so no parameter is without decay."""
    net = Net([AdapterBlock() for _ in range(3)])
    net.head.requires_grad_(requires_grad=False)
    return net


NETS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "plain": Net,
    "tied": TiedNet,
    "shared_layer": shared_layer_net,
    "unused_layer": UnusedLayerNet,
    "unused_inside": lambda: Net([UnusedInsideBlock() for _ in range(3)]),
    "odd_sizes": lambda: Net([OddSizes(), Block()]),
    "empty_layer": lambda: Net([EmptyLayerBlock(), Block()]),
    "uneven_frozen": uneven_frozen_net,
    "table": TableNet,
}
MORE_NETS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "dropout": DropoutNet,
    "frozen": frozen_net,
    "house": HouseNet,
    "statistics": StatisticsNet,
    "alternating": AlternatingNet,
    "rank_dependent": RankDependentNet,
    "experts": lambda: Net([Experts(), Block(), Experts()]),
    "adapters": adapter_net,
    "wide": wide_net,
}


@dataclass
class NetTask:
    """Fulfils `workers.models.Task`."""

    net: Callable[[], nn.Module]
    spoil_from: int | None = None  # the loss is NaN from this forward on
    scale: float = 1.0  # of the loss
    digest: str = "rows"  # of the data
    forwards: int = 0
    module: nn.Module | None = None

    def build(self) -> nn.Module:
        self.module = self.net()
        return self.module

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        return list(module.blocks)

    def loss_sum(self, module: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        error = (module(batch["x"]).float() - batch["y"]).square().squeeze(-1)
        self.forwards += 1
        spoiled = self.spoil_from is not None and self.forwards > self.spoil_from
        return (error * batch["counted"]).sum() * (math.nan if spoiled else self.scale)

    def num_tokens(self, batch: Mapping[str, torch.Tensor]) -> int:
        return int(batch["counted"].sum())

    def dataset(self, cache_dir: Path) -> Rows:
        return Rows(self.digest)


class _Traced(np.ndarray):
    """An array that can be watched: it lives as long as the memory of a tensor over it."""


@dataclass
class DeferredNetTask(NetTask):
    """The same weights, one by one: fulfils `workers.models.task.DeferredTask`."""

    asked: list[str] = field(default_factory=list)
    most_alive: int = 0  # values that were held at a time
    _values: dict[str, np.ndarray] = field(default_factory=dict)
    _handed_out: list[weakref.ref[np.ndarray]] = field(default_factory=list)

    def build(self) -> nn.Module:
        module = super().build()
        for name, parameter in module.named_parameters():
            self._values[name] = parameter.detach().numpy()
            empty = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, empty)
        return module

    def initial_weight(self, name: str) -> torch.Tensor:
        self.asked.append(name)
        value = self._values[name].copy().view(_Traced)
        if value.size > 1:  # fewer elements have nothing to cut and are kept whole
            self._handed_out.append(weakref.ref(value))
        self.most_alive = max(self.most_alive, sum(1 for one in self._handed_out if one() is not None))
        return torch.from_numpy(value)


def make_task(net: str, *, deferred: bool = False, **options: Any) -> NetTask:
    """Make a task by name: what a job file's `model.target` names."""
    return (DeferredNetTask if deferred else NetTask)((NETS | MORE_NETS)[net], **options)


def make_config(**changes: Any) -> TrainingConfig:
    """Return a config of 6 steps of 10 rows; `changes` are dotted keys, `train__seed=1`."""
    tree: dict[str, Any] = {
        "model": {"kind": "task", "target": "small_tasks:make_task", "args": {"net": "plain"}},
        "data": {"kind": "task"},
        "train": {
            "steps": 6,
            "batch": {"global_sequences": 10},
            "optimizer": {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.1},
            "schedule": {"name": "cosine", "warmup_steps": 2},
            "precision": {"params": "fp32"},
            "grad_clip": 1.0,
        },
        "engine": {"kind": "fsdp"},
    }
    for key, value in changes.items():
        place = tree
        *path, last = key.split("__")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return TrainingConfig.model_validate(tree)


def micro_batches(
    task: NetTask, config: TrainingConfig, plan: BatchPlan, *, step: int, rank: int
) -> list[WeightedBatch]:
    """Cut one step for one rank."""
    found = []
    for micro in plan.micro_batches(step=step, rank=rank):
        batch = Rows().batch(range(micro.first, micro.first + max(micro.count, 1)))
        seed = stream_seed(seed=config.train.seed, step=step, first_index=micro.first)
        counted = micro.count > 0
        tokens = task.num_tokens(batch) if counted else 0
        found.append(WeightedBatch(batch=batch, num_tokens=tokens, seed=seed, is_counted=counted))
    return found


@dataclass
class Run:
    """What a training run came to."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def reference_run(task: NetTask, config: TrainingConfig) -> Run:
    """Train in this process with nothing but torch: the whole batch at once, AdamW's plain loop, clipping by hand."""
    train = config.train
    seed_streams(train.seed)
    module = task.build()
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": train.optimizer.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    options = {"lr": 1.0, "foreach": False}
    if train.optimizer.name == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            groups, betas=train.optimizer.betas, eps=train.optimizer.eps, **options
        )
    else:
        optimizer = torch.optim.SGD(groups, momentum=train.optimizer.betas[0], **options)
    plan = plan_batch(
        global_sequences=train.batch.global_sequences, world_size=1, micro=train.batch.global_sequences
    )
    run = Run(losses=[], norms=[], weights={})
    for step in range(train.steps):
        (whole,) = micro_batches(task, config, plan, step=step, rank=0)
        seed_streams(whole.seed)
        loss = task.loss_sum(module, whole.batch) / whole.num_tokens
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in trainable if p.grad is not None))
        for p in trainable:
            if p.grad is not None and train.grad_clip is not None and norm > train.grad_clip:
                p.grad.mul_(train.grad_clip / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, train)
        optimizer.step()
        optimizer.zero_grad()
        run.losses.append(loss.item())
        run.norms.append(norm)
    run.weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    return run
