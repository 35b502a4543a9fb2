"""Random boards and what becomes of them: samples by number, the same ones on every worker."""

from collections.abc import Sequence

import torch


def next_board(boards: torch.Tensor) -> torch.Tensor:
    """Return the boards [..., H, W] of 0 and 1 one step later; their edges meet."""
    neighbours = sum(
        boards.roll((down, right), dims=(-2, -1))
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
        if (down, right) != (0, 0)
    )
    return ((neighbours == 3) | ((boards == 1) & (neighbours == 2))).to(boards.dtype)


class Boards:
    """Fulfils `Dataset`: sample i is drawn from a seed of its own, so nothing has to be stored or kept in order."""

    def __init__(self, *, count: int, size: int, seed: int) -> None:
        """`count` boards of `size` x `size` cells."""
        self._count, self._size, self._seed = count, size, seed

    @property
    def digest(self) -> str:
        """What the samples depend on, all of it: a run that goes on checks that it is still the same."""
        return f"life-1:{self._count}:{self._size}:{self._seed}"

    def __len__(self) -> int:
        """Number of samples."""
        return self._count

    def batch(self, ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return `now` and `next`, fp32 [B, 1, H, W] each."""
        now = torch.stack([self._board(sample) for sample in ids])
        return {"now": now, "next": next_board(now)}

    def _board(self, sample: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + sample)
        return (torch.rand(1, self._size, self._size, generator=generator) < 0.35).float()
