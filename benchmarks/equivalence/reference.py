"""What every row is compared with: one process and plain torch. It shares no line with the engines.

The whole global batch in one forward, the mean over its counted tokens, clipping by hand, the optimizer's plain loop. In bf16
the forward reads bf16 copies of the fp32 weights, and gradients are fp32.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from benchmarks.equivalence.model import Sequences
from workers.contract.config import Optimizer, TrainingConfig
from workers.models.task import Batch, DeferredTask, Task
from workers.schedule import learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a training came to: by step, and the weights after the last one."""

    losses: list[float]
    norms: list[float]  # of the gradient, before clipping
    weights: dict[str, torch.Tensor]  # whole, fp32, tied ones once


class InBf16(nn.Module):
    """Calls a module with bf16 copies of its parameters, through which gradients flow back to the originals."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what the module returns."""
        copies = {name: value.to(torch.bfloat16) for name, value in self.inner.named_parameters()}
        logits: torch.Tensor = functional_call(self.inner, copies, (tokens,))
        return logits


def train_reference(task: Task, config: TrainingConfig) -> Run:
    """Train in this process, on one thread or more; no process group."""
    train = config.train
    module = _build(task, train.seed)
    forward = InBf16(module) if train.precision.params == "bf16" else module
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = _optimizer(trained, train.optimizer)
    run = Run(losses=[], norms=[], weights={})
    for step in range(train.steps):
        batch = whole_batch(step, train.batch.global_sequences)
        loss = task.loss_sum(forward, batch) / task.num_tokens(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        run.losses.append(loss.item())
        run.norms.append(_clip(trained, train.grad_clip))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, train)
        optimizer.step()
        optimizer.zero_grad()
    run.weights.update({name: value.detach() for name, value in module.named_parameters()})
    return run


def whole_batch(step: int, global_sequences: int) -> Batch:
    """Return the global batch of a step: global indices in their order."""
    return Sequences().batch(range(step * global_sequences, (step + 1) * global_sequences))


def _build(task: Task, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = task.build()
    if isinstance(task, DeferredTask):
        for name, parameter in module.named_parameters():
            value = nn.Parameter(task.initial_weight(name), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, value)  # type: ignore[no-untyped-call]
    return module


def _optimizer(trained: list[nn.Parameter], options: Optimizer) -> torch.optim.Optimizer:
    """Return torch's plain loop, which decays matrices alone; the schedule gives its rate."""
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    if options.name == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.betas[0], foreach=False)
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps, foreach=False)


def _clip(trained: list[nn.Parameter], limit: float | None) -> float:
    """Scale gradients down to `limit` and return the norm that they had, summed up in fp64."""
    gradients = [p.grad for p in trained if p.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if limit is not None and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm
