"""The Llama family as a `Task`: next-token cross-entropy over token samples."""

# ruff: noqa: N806 -- shape suffixes are upper case: B sequences, T positions, V vocabulary

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from torch import nn

from workers.contract.config import LlamaModel, TokenData
from workers.data import load_dataset, vocab_size_of
from workers.data.dataset import Batch, DataError, Dataset
from workers.models.llama import Llama
from workers.models.llama_dimensions import LlamaDimensions, llama_dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaTask:
    """Fulfils `Task`. Every token of a batch counts."""

    dimensions: LlamaDimensions
    data: TokenData

    def build(self) -> nn.Module:
        """Build the decoder in fp32 from torch's default generator."""
        return Llama(self.dimensions)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the decoder layers; embedding, final norm and head stay with the root, which a tied head asks for."""
        assert isinstance(module, Llama), type(module)
        return list(module.model.layers)

    def loss_sum(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the counted tokens, in fp32 whatever the logits are."""
        logits_BTV = module(batch["tokens"])
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


def llama_task(model: LlamaModel, data: TokenData) -> LlamaTask:
    """Resolve the dimensions. Opens a token file's header only when `model.vocab_size` is left to the data."""
    needed = model.vocab_size or vocab_size_of(data)
    return LlamaTask(dimensions=llama_dimensions(model, vocab_size=needed), data=data)
