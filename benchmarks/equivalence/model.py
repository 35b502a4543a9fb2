"""What is trained: a small decoder with the oddities of users' modules, and sequences that are a function of their index.

Legend: B batch, T positions, C width, V vocabulary.
"""

# ruff: noqa: N803, N806 -- shape suffixes are upper case

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from benchmarks.equivalence.matrix import SEED, Training
from workers.models.task import Batch, Task

VOCABULARY: Final = 61
POSITIONS: Final = 12
BLOCKS: Final = 3


class Block(nn.Module):
    """Causal attention with one head and an MLP, both residual."""

    def __init__(self, width: int) -> None:
        """Matrices of attention have no bias: a key's would have a gradient of zero but for rounding."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        """Return what the next block reads, of the same shape."""
        h = self.attention_norm(x_BTC)
        query, key, value = (part(h).unsqueeze(1) for part in (self.query, self.key, self.value))
        x_BTC = x_BTC + F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        more: torch.Tensor = self.down(F.gelu(self.up(self.mlp_norm(x_BTC))))
        return x_BTC + more


class OddBlock(Block):
    """One with a layer that nobody calls, a gain of 0 dims, and a weight without elements."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.spare = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(()))
        self.nothing = nn.Parameter(torch.ones(0, width))

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        """See `Block`."""
        return x_BTC + self.gain * (super().forward(x_BTC) - x_BTC) + self.nothing.sum()


class Decoder(nn.Module):
    """Embedding, a table of positions that no checkpoint holds, blocks, head."""

    table: torch.Tensor

    def __init__(self, width: int, *, has_oddities: bool) -> None:
        """With oddities the head is the embedding, the second block is frozen, the third one an `OddBlock`."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        kinds = [Block, Block, OddBlock if has_oddities else Block]
        self.blocks = nn.ModuleList(kind(width) for kind in kinds)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        angles = torch.arange(POSITIONS)[:, None] / 10 ** torch.linspace(0, 3, width)
        self.register_buffer("table", angles.sin(), persistent=False)
        nn.init.normal_(self.embedding.weight, std=0.3)
        if has_oddities:
            self.head.weight = self.embedding.weight
            self.blocks[1].requires_grad_(requires_grad=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return logits, [B, T, V], in the dtype of the weights."""
        x_BTC = self.embedding(tokens_BT)
        x_BTC = x_BTC + self.table[: tokens_BT.shape[1]].to(x_BTC.dtype)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV: torch.Tensor = self.head(self.norm(x_BTC))
        return logits_BTV


class Sequences:
    """Walks over the vocabulary with steps of 1 to 3; sequence i counts 1 to 12 of its positions, so batches differ."""

    digest = "walks"

    def __len__(self) -> int:
        """Return more than any training here reads."""
        return 1 << 20

    def batch(self, ids: Sequence[int]) -> Batch:
        """Return `tokens` and `labels`, int64 [B, T]; -100 is not counted."""
        walks = torch.stack([self._walk(index) for index in ids])
        tokens, labels = walks[:, :-1], walks[:, 1:].clone()
        for row, index in enumerate(ids):
            labels[row, 1 + 5 * index % POSITIONS :] = -100
        return {"tokens": tokens, "labels": labels}

    @staticmethod
    def _walk(index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        steps = torch.randint(1, 4, (POSITIONS + 1,), generator=generator)
        return steps.cumsum(0).add(7 * index) % VOCABULARY


class DecoderTask:
    """Fulfils `Task`."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def build(self) -> nn.Module:
        """See `Task`."""
        return Decoder(self._training.width, has_oddities=self._training.has_oddities)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """See `Task`."""
        assert isinstance(module, Decoder)
        return list(module.blocks)

    def loss_sum(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """See `Task`. Cross-entropy in fp32."""
        logits = module(batch["tokens"]).float()
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def num_tokens(self, batch: Batch) -> int:
        """See `Task`."""
        return int((batch["labels"] >= 0).sum())

    def dataset(self, cache_dir: Path) -> Sequences:
        """See `Task`."""
        return Sequences()


class DeferredDecoderTask(DecoderTask):
    """Fulfils `DeferredTask`: the module on the meta device, each weight a function of its name and the seed."""

    def build(self) -> nn.Module:
        """See `DeferredTask`. The table is real."""
        module = super().build()
        for parameter in module.parameters():
            empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, empty)  # type: ignore[no-untyped-call]
        self._shapes: Mapping[str, torch.Size] = {
            name: parameter.shape for name, parameter in module.named_parameters()
        }
        return module

    def initial_weight(self, name: str) -> torch.Tensor:
        """See `DeferredTask`. Matrices are drawn, everything else is one, but for a little noise."""
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ SEED)
        shape = self._shapes[name]
        noise = torch.randn(shape, generator=generator)
        if len(shape) < 2:
            return noise.mul(0.1) + (0.0 if name.endswith("bias") else 1.0)
        return noise * (0.3 if name == "embedding.weight" else shape[-1] ** -0.5)


def make_task(training: Training) -> Task:
    """Return a task with its own module."""
    return DeferredDecoderTask(training) if training.is_deferred else DecoderTask(training)
