"""The network, its loss, and its samples: what shardyard asks of a user's own code, and nothing else."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from torch import nn

from life.boards import Boards


class LifeNet(nn.Module):
    """Boards to a logit per cell. Looks one cell far, as the rule does; the layers after that see single cells."""

    def __init__(self, width: int, num_layers: int) -> None:
        """`num_layers` layers of `width` channels."""
        super().__init__()
        self.look = nn.Conv2d(1, width, kernel_size=3, padding=1, padding_mode="circular")
        self.layers = nn.ModuleList(_Layer(width) for _ in range(num_layers))
        self.head = nn.Conv2d(width, 1, kernel_size=1)

    def forward(self, boards: torch.Tensor) -> torch.Tensor:
        """Map [B, 1, H, W] to logits of the same shape."""
        x = self.look(boards)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(width, 2 * width, kernel_size=1)
        self.narrow = nn.Conv2d(2 * width, width, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(F.gelu(self.widen(x)))  # type: ignore[no-any-return]


class LifeTask:
    """The five methods. It needs no base class and no import of shardyard."""

    def __init__(self, width: int, num_layers: int) -> None:
        """What `model.args` of the job says."""
        self._width, self._num_layers = width, num_layers

    def build(self) -> nn.Module:
        """Build the network on the CPU; the generator is seeded by the job."""
        return LifeNet(self._width, self._num_layers)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return what is sharded, recomputed and compiled as a unit."""
        assert isinstance(module, LifeNet)
        return list(module.layers)

    def loss_sum(self, module: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the cross-entropy summed over all cells."""
        logits = module(batch["now"])
        return F.binary_cross_entropy_with_logits(logits.float(), batch["next"].float(), reduction="sum")

    def num_tokens(self, batch: Mapping[str, torch.Tensor]) -> int:
        """Return how many cells that is."""
        return batch["next"].numel()

    def dataset(self, cache_dir: Path) -> Boards:
        """Open the samples. Nothing is prepared, so the cache stays empty."""
        del cache_dir
        return Boards(count=20_000, size=24, seed=1)


def make_task(width: int = 32, num_layers: int = 2) -> LifeTask:
    """What the job's `model.target` names."""
    return LifeTask(width, num_layers)
