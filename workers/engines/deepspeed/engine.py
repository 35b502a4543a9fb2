"""The engine on DeepSpeed ZeRO, stages 0 to 3: it cuts, gathers, reduces and offloads; what is computed is ours.

Loss, clipping, loss scale, learning rate and the update follow the same rules as the native engines', so that a stage
is a question of memory alone. DeepSpeed divides gradients by the number of ranks; the loss is multiplied by it first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from workers.contract.config import Train
from workers.engines.batch_norm import RunningStatistics
from workers.engines.deepspeed.module import LaidOut
from workers.engines.deepspeed.nvme import MASTER, FileStates
from workers.engines.deepspeed.optimizer import Fragment, FragmentOptimizer
from workers.engines.deepspeed.partitions import Partitions
from workers.engines.engine import Evaluation, StepOutput, WeightedBatch
from workers.engines.flat_shard import FlatShard
from workers.engines.graph import depend_on, used_in
from workers.engines.judge import judge
from workers.engines.loss_scaler import LossScaler
from workers.engines.names import ModuleNames
from workers.engines.optimizer import clip_factor
from workers.errors import ConfigError
from workers.memory import static_bytes, storage_bytes
from workers.models.task import Task
from workers.random_streams import seed_streams
from workers.world import World


class DeepSpeedEngine:
    """Implements `Engine`."""

    def __init__(
        self,
        *,
        task: Task,
        laid_out: LaidOut,
        names: ModuleNames,
        ds_engine: Any,
        optimizer: FragmentOptimizer,
        partitions: Partitions,
        files: FileStates,
        train: Train,
        world: World,
        stage: int,
    ) -> None:
        """Take over what `build` made."""
        self._task, self._laid_out, self._names = task, laid_out, names
        self._ds_engine, self._optimizer = ds_engine, optimizer
        self._partitions, self._files = partitions, files
        self._grad_clip, self._world = train.grad_clip, world
        self._is_replicated = stage == 0
        self._reduces_as_made = stage >= 2
        self._is_cut = stage == 3
        self._statistics = RunningStatistics(laid_out.module, world)
        self._scaler = LossScaler(train.precision) if train.precision.params == "fp16" else None
        self._gradient_bytes = 0
        fragments = partitions.fragments()
        optimizer.bind(fragments)
        for flat, places in fragments.items():
            with files.opened(flat):
                optimizer.make_state(flat)
                self._take_masters(flat, places)

    def train_step(self, micro_batches: Sequence[WeightedBatch], *, learning_rate: float) -> StepOutput:
        """See `Engine`. Forward and backward of each micro-batch; DeepSpeed reduces; agree, clip, update."""
        self._files.forget()
        (tokens,) = self._world.sum_over_ranks([sum(batch.num_tokens for batch in micro_batches)])
        scale = self._scaler.scale if self._scaler else 1.0
        self._statistics.begin_step()
        local_loss = self._backward(micro_batches, max(tokens, 1), scale)
        self._gradient_bytes = storage_bytes(self._partitions.gradients())
        dist.all_reduce(local_loss, group=self._world.group)
        loss = float(local_loss)
        output = judge(loss, self._partitions.norm() / scale, tokens, self._scaler)
        is_taken = output.is_finite and not output.is_skipped
        if is_taken:
            self._update(clip_factor(output.grad_norm, self._grad_clip) / scale, learning_rate)
        self._partitions.after_step()
        self._statistics.end_step(
            is_taken=is_taken, has_counted=any(batch.is_counted for batch in micro_batches)
        )
        return output

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[WeightedBatch]) -> Evaluation:
        """See `Engine`."""
        total = torch.zeros((), dtype=torch.float64, device=self._world.device)
        self._ds_engine.eval()
        for micro in micro_batches:
            seed_streams(micro.seed)
            loss_sum = self._task.loss_sum(self._ds_engine, self._on_device(micro))
            total += loss_sum if micro.is_counted else 0.0
        self._ds_engine.train()
        (tokens,) = self._world.sum_over_ranks([sum(batch.num_tokens for batch in micro_batches)])
        dist.all_reduce(total, group=self._world.group)
        return Evaluation(loss=float(total) / tokens if tokens else math.nan, tokens=tokens)

    def state(self) -> Mapping[str, torch.Tensor]:
        """See `Engine`. A rank that holds nothing of a parameter has an empty shard of it.

        What lies in files is read, and stays in host memory until the next step.
        """
        lies = self._lies()
        tensors: dict[str, torch.Tensor] = {}
        for name, shape in self._laid_out.shapes.items():
            if name in self._names.base:
                continue
            if name in self._laid_out.frozen:
                tensors[f"model.{name}"] = self._laid_out.frozen[name].state()
                continue
            if name not in lies:
                lies[name] = {}, _nothing(name, shape)
            values, fragment = lies[name]
            tensors[f"model.{name}"] = self._shard(values.get(MASTER), fragment, shape)
            tensors[f"optimizer.{name}.step"] = self._optimizer.steps[name]
            for moment in self._optimizer.moments:
                tensors[f"optimizer.{name}.{moment}"] = self._shard(values.get(moment), fragment, shape)
        for name, buffer in self._laid_out.module.named_buffers():
            if name in self._names.persistent_buffers:
                tensors[f"buffer.{name}"] = buffer
        return tensors | (self._scaler.state() if self._scaler else {})

    def aliases(self) -> Mapping[str, str]:
        """See `Engine`."""
        return self._names.aliases

    def after_load(self) -> None:
        """See `Engine`."""
        self._files.take_back()
        self._partitions.publish(self._files.opened)
        for frozen in self._laid_out.frozen.values():
            frozen.publish()
        self._laid_out.forget_copies()

    def memory(self) -> Mapping[str, int]:
        """See `Engine`. Masters count as optimizer state: forward reads DeepSpeed's own copy of them."""
        masters = list(self._partitions.fragments())
        moments = [value for flat in masters for value in self._optimizer.state[flat].values()]
        held = {
            "parameters": [*self._laid_out.working(), *self._partitions.fetch_buffers()],
            "optimizer_state": [
                *(flat.detach() for flat in masters),
                *moments,
                *self._optimizer.steps.values(),
                *(frozen.master for frozen in self._laid_out.frozen.values()),
                *self._files.buffers(),
            ],
            "buffers": list(self._laid_out.module.buffers()),
        }
        static = static_bytes(held, device=self._world.device)
        return static | {"gradients": self._gradient_bytes}

    def _backward(self, micro_batches: Sequence[WeightedBatch], tokens: int, scale: float) -> torch.Tensor:
        """Accumulate gradients of scale * sum(loss) / tokens; return this rank's part of the loss, 0-dim fp64."""
        total = torch.zeros((), dtype=torch.float64, device=self._world.device)
        used: set[str] = set()
        last = len(micro_batches) - 1
        for i, micro in enumerate(micro_batches):
            self._ds_engine.set_gradient_accumulation_boundary(i == last)
            seed_streams(micro.seed)
            with self._statistics.only_if(is_counted=micro.is_counted):
                loss_sum = self._task.loss_sum(self._ds_engine, self._on_device(micro))
                loss = loss_sum / tokens if micro.is_counted else loss_sum * 0.0
                scaled = self._keep_step(loss * (scale * self._world.world_size), used)
                self._ds_engine.backward(scaled, scale_wrt_gas=False)
            total += loss.detach()
        self._optimizer.used = frozenset(used)
        return total

    def _keep_step(self, loss: torch.Tensor, used: set[str]) -> torch.Tensor:
        """Note what any rank uses, and make this one reduce all of that; one small all-reduce.

        Raises ConfigError from stage 2 on: there DeepSpeed reduces gradients in the order in which backward makes them,
        so that ranks which use other parameters than their peers would add up what does not belong together.
        """
        parameters = self._laid_out.trainable
        here = used_in(loss, parameters.values())
        counts = self._world.sum_over_ranks([int(flag) for flag in here]) if here else []
        used.update(name for name, count in zip(parameters, counts, strict=True) if count)
        world_size = self._world.world_size
        mixed = [
            (name, flag)
            for name, flag, count in zip(parameters, here, counts, strict=True)
            if 0 < count < world_size
        ]
        if mixed and self._reduces_as_made:
            raise ConfigError(_mixed_use(mixed[0][0], self._world.rank, is_used=mixed[0][1]))
        unused = [parameters[name] for name, flag in mixed if not flag]
        return depend_on(loss, unused) if unused else loss

    @torch.no_grad()
    def _take_masters(self, flat: torch.Tensor, places: Sequence[Fragment]) -> None:
        """Put first values in full precision where DeepSpeed has taken them from what it had cast."""
        masters = self._laid_out.masters
        for place in places:
            if place.name in masters:
                value = masters[place.name].view(-1)
                part = value if self._is_cut else value[place.start : place.start + place.length]
                flat.view(-1).narrow(0, place.offset, place.length).copy_(part)

    def _update(self, factor: float, learning_rate: float) -> None:
        self._optimizer.factor = factor
        for group in self._ds_engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._ds_engine.optimizer.step()
        self._optimizer.count((*self._optimizer.used, *self._laid_out.empty))

    def _on_device(self, micro: WeightedBatch) -> Mapping[str, torch.Tensor]:
        return {key: value.to(self._world.device) for key, value in micro.batch.items()}

    def _lies(self) -> dict[str, tuple[Mapping[str, torch.Tensor], Fragment]]:
        """Return for each parameter the flat tensors that hold this rank's part, by what they are, and where it is."""
        return {
            fragment.name: (self._files.values(flat), fragment)
            for flat, fragments in self._partitions.fragments().items()
            for fragment in fragments
        }

    def _shard(self, flat: torch.Tensor | None, fragment: Fragment, shape: torch.Size) -> torch.Tensor:
        if shape.numel() == 0:
            return torch.empty(shape)
        if flat is None:
            return FlatShard(torch.empty(0), shape, 0)
        part = flat.detach().view(-1).narrow(0, fragment.offset, fragment.length)
        return part.view(shape) if self._is_replicated else FlatShard(part, shape, fragment.start)


def _nothing(name: str, shape: torch.Size) -> Fragment:
    return Fragment(name=name, shape=tuple(shape), start=0, length=0, offset=0)


def _mixed_use(name: str, rank: int, *, is_used: bool) -> str:
    did = "used" if is_used else "did not use"
    return (
        f"rank {rank} {did} {name} in this step, and other ranks did otherwise: deepspeed cannot train that with "
        "zero_stage 2 or 3; use `zero_stage: 1`, or `kind: fsdp` or `ddp`"
    )
