"""The engine on PyTorch's own autograd and optimizers, over a `Layout`."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from workers.contract.config import Train
from workers.engines.batch_norm import RunningStatistics
from workers.engines.engine import Evaluation, StepOutput, WeightedBatch
from workers.engines.judge import judge
from workers.engines.layout import Layout
from workers.engines.loss_scaler import LossScaler
from workers.engines.names import ModuleNames
from workers.engines.optimizer import build_optimizer, clip_factor, square_sum
from workers.memory import static_bytes, storage_bytes
from workers.models.task import Task
from workers.random_streams import seed_streams
from workers.world import World


class NativeEngine:
    """Implements `Engine` for `ddp` and `fsdp`."""

    def __init__(
        self, *, task: Task, module: nn.Module, names: ModuleNames, layout: Layout, train: Train, world: World
    ) -> None:
        self._task = task
        self._module = module
        self._names = names
        self._layout = layout
        self._grad_clip = train.grad_clip
        self._world = world
        self._statistics = RunningStatistics(module, world)
        self._scaler = LossScaler(train.precision) if train.precision.params == "fp16" else None
        self._trainable = [p for p in layout.parameters if p.master.requires_grad]
        self._optimizer = build_optimizer(train.optimizer, [p.master for p in self._trainable])
        self._gradient_bytes = 0

    def train_step(self, micro_batches: Sequence[WeightedBatch], *, learning_rate: float) -> StepOutput:
        """See `Engine`. Forward and backward of each micro-batch, reduce, agree on loss and norm, clip, update."""
        (tokens,) = self._world.sum_over_ranks([sum(batch.num_tokens for batch in micro_batches)])
        scale = self._scaler.scale if self._scaler else 1.0
        self._statistics.begin_step()
        local_loss = self._backward(micro_batches, max(tokens, 1), scale)
        self._layout.reduce_gradients()
        self._gradient_bytes = storage_bytes(self._gradients())
        loss, norm = self._agree(local_loss)
        output = judge(loss, norm / scale, tokens, self._scaler)
        is_taken = output.is_finite and not output.is_skipped
        if is_taken:
            self._update(clip_factor(output.grad_norm, self._grad_clip) / scale, learning_rate)
        self._statistics.end_step(
            is_taken=is_taken, has_counted=any(batch.is_counted for batch in micro_batches)
        )
        self._layout.clear_gradients()
        return output

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[WeightedBatch]) -> Evaluation:
        """See `Engine`."""
        total = torch.zeros((), dtype=torch.float64, device=self._world.device)
        self._module.eval()
        for micro in micro_batches:
            batch = {key: value.to(self._world.device) for key, value in micro.batch.items()}
            seed_streams(micro.seed)
            loss_sum = self._task.loss_sum(self._module, batch)
            total += loss_sum if micro.is_counted else 0.0
        self._module.train()
        self._layout.drop_gathered()
        (tokens,) = self._world.sum_over_ranks([sum(batch.num_tokens for batch in micro_batches)])
        dist.all_reduce(total, group=self._world.group)
        return Evaluation(loss=float(total) / tokens if tokens else math.nan, tokens=tokens)

    def state(self) -> Mapping[str, torch.Tensor]:
        """See `Engine`."""
        tensors: dict[str, torch.Tensor] = {}
        for parameter in self._layout.parameters:
            if parameter.name not in self._names.base:
                tensors[f"model.{parameter.name}"] = parameter.as_global(parameter.master.detach())
        for parameter in self._trainable:
            for key, value in self._optimizer.state[parameter.master].items():
                lies_as_master = key != "step"
                tensors[f"optimizer.{parameter.name}.{key}"] = (
                    parameter.as_global(value) if lies_as_master else value
                )
        for name, buffer in self._module.named_buffers():
            if name in self._names.persistent_buffers:
                tensors[f"buffer.{name}"] = buffer
        return tensors | (self._scaler.state() if self._scaler else {})

    def aliases(self) -> Mapping[str, str]:
        """See `Engine`."""
        return self._names.aliases

    def after_load(self) -> None:
        """See `Engine`."""
        self._layout.publish_masters()

    def memory(self) -> Mapping[str, int]:
        """See `Engine`. Masters count as parameters, or as optimizer state where forward reads a copy of them."""
        state = [value for entry in self._optimizer.state.values() for value in entry.values()]
        held = {
            "parameters": [p.working.detach() for p in self._layout.parameters],
            "optimizer_state": [p.master.detach() for p in self._layout.parameters] + state,
            "buffers": list(self._module.buffers()),
        }
        static = static_bytes(held, device=self._world.device)
        if "offloaded" in static:  # gradients lie beside their masters
            return static | {"gradients": 0, "offloaded": static["offloaded"] + self._gradient_bytes}
        return static | {"gradients": self._gradient_bytes}

    def _backward(self, micro_batches: Sequence[WeightedBatch], tokens: int, scale: float) -> torch.Tensor:
        """Accumulate gradients of scale * sum(loss) / tokens; return this rank's part of the loss, 0-dim fp64."""
        total = torch.zeros((), dtype=torch.float64, device=self._world.device)
        last = len(micro_batches) - 1
        for i, micro in enumerate(micro_batches):
            self._layout.before_backward(is_first=i == 0, is_last=i == last)
            batch = {key: value.to(self._world.device) for key, value in micro.batch.items()}
            seed_streams(micro.seed)
            with self._statistics.only_if(is_counted=micro.is_counted):
                loss_sum = self._task.loss_sum(self._module, batch)
                loss = loss_sum / tokens if micro.is_counted else loss_sum * 0.0
                (loss * scale).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _gradients(self, *, sharded: bool | None = None) -> Iterator[torch.Tensor]:
        for parameter in self._trainable:
            if parameter.master.grad is not None and sharded in (None, parameter.is_sharded):
                yield parameter.master.grad

    def _agree(self, local_loss: torch.Tensor) -> tuple[float, float]:
        """Return the global loss and gradient norm, bit for bit the same on all ranks; one small collective.

        Squares of shards are summed over ranks; replicated gradients are equal on all ranks and counted once.
        """
        device = self._world.device
        sums = torch.stack([local_loss, square_sum(self._gradients(sharded=True), device)])
        dist.all_reduce(sums, group=self._world.group)
        loss, squares = (
            float(value) for value in sums.tolist()
        )  # a synchronisation point on CUDA, the only one
        replicated = float(square_sum(self._gradients(sharded=False), device))
        return loss, math.sqrt(squares / self._layout.num_copies + replicated)

    def _update(self, factor: float, learning_rate: float) -> None:
        if factor != 1.0:
            for gradient in self._gradients():
                gradient.mul_(factor)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._layout.publish_masters()
