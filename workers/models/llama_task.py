"""The Llama family as a `Task`: next-token cross-entropy over token samples."""

# ruff: noqa: N806 -- shape suffixes are upper case: B sequences, T positions, V vocabulary

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from torch import nn

from workers.contract.config import LlamaModel, TokenData
from workers.data import load_dataset, vocab_size_of
from workers.data.dataset import Batch, DataError, Dataset
from workers.models.llama import Llama, initial_std, weight_shape
from workers.models.llama_dimensions import LlamaDimensions, llama_dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaTask:
    """Fulfils `DeferredTask`."""

    dimensions: LlamaDimensions
    data: TokenData
    seed: int

    def build(self) -> nn.Module:
        """Build the structure on the meta device; the module has no buffer to lose there."""
        with torch.device("meta"):
            return Llama(self.dimensions)

    def initial_weight(self, name: str) -> torch.Tensor:
        """See `DeferredTask`: norms 1, the rest normal, each tensor from a seed of its own."""
        shape = weight_shape(self.dimensions, name)
        std = initial_std(self.dimensions, name)
        if std is None:
            return torch.ones(shape)
        digest = hashlib.blake2b(f"{self.seed}:{name}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        return torch.randn(shape, generator=generator) * std

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the decoder layers; embedding, final norm and head stay with the root, which a tied head asks for."""
        assert isinstance(module, Llama), type(module)
        return list(module.model.layers)

    def loss_sum(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the counted tokens, in fp32 whatever the logits are."""
        logits_BTV = module(batch["tokens"], batch.get("documents"))
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), batch["labels"].flatten(), reduction="sum")

    def num_tokens(self, batch: Batch) -> int:
        """Return how many of the B x T labels are counted: -100 is none (the value that `cross_entropy` passes over)."""
        return int((batch["labels"] != -100).sum())

    def dataset(self, cache_dir: Path) -> Dataset:
        """Open the samples. Raises DataError, also for ids that the embedding table has no row for."""
        dataset = load_dataset(self.data, cache_dir)
        if dataset.vocab_size > self.dimensions.vocab_size:
            raise DataError(
                f"model.vocab_size: {self.dimensions.vocab_size} is below the {dataset.vocab_size} ids "
                "that the data uses: leave it out"
            )
        return dataset


def llama_task(model: LlamaModel, data: TokenData, *, seed: int) -> LlamaTask:
    """Resolve the dimensions. Opens a token file's header only when `model.vocab_size` is left to the data."""
    needed = model.vocab_size or vocab_size_of(data)
    return LlamaTask(dimensions=llama_dimensions(model, vocab_size=needed), data=data, seed=seed)
