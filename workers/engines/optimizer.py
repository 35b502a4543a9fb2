"""The optimizer over a rank's masters, its state there from the start, and clipping by the true global norm."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from workers.contract.config import Optimizer as OptimizerConfig


def build_optimizer(config: OptimizerConfig, masters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer over plain local tensors. Only matrices (2 dims and more) are decayed.

    Its state is made here, zero, and not in the first step: so what is saved is complete at every moment, and a load
    has somewhere to go. A step from zero state is what torch's own first step is.
    """
    matrices = [master for master in masters if master.ndim >= 2]
    others = [master for master in masters if master.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer: torch.optim.Optimizer
    if config.name == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.betas[0], fused=True)
    for master in masters:
        optimizer.state[master] = _zero_state(config, master)
    return optimizer


def square_sum(gradients: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the sum of squares over all elements: 0-dim, fp64, on `device`. Local; the caller sums over ranks."""
    norm = torch.nn.utils.get_total_norm([gradient.detach() for gradient in gradients])
    return norm.to(device=device, dtype=torch.float64).square()


def clip_factor(norm: float, limit: float | None) -> float:
    """Return what gradients are multiplied by so that their norm is at most `limit`.

    No small constant in the divisor: a norm above a positive limit is never 0, and one below is left alone.
    """
    return limit / norm if limit is not None and norm > limit else 1.0


def _zero_state(config: OptimizerConfig, master: nn.Parameter) -> dict[str, torch.Tensor]:
    def zeros() -> torch.Tensor:
        return torch.zeros_like(master, requires_grad=False)

    if config.name == "adamw":
        step = torch.zeros((), dtype=torch.float32, device=master.device)
        return {"step": step, "exp_avg": zeros(), "exp_avg_sq": zeros()}
    return {"momentum_buffer": zeros()} if config.betas[0] > 0 else {}
