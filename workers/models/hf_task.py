"""Causal language models of transformers as a `DeferredTask`, with or without LoRA adapters."""

# ruff: noqa: N806 -- shape suffixes are upper case: B sequences, T positions, V vocabulary

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from torch import nn

from workers.contract.config import HfModel, TokenData
from workers.data import load_dataset
from workers.data.dataset import Batch, DataError, Dataset
from workers.models.hf_library import (
    add_adapters,
    build_model,
    find_files,
    original_name,
    read_configuration,
)
from workers.models.hf_weights import DrawnWeights, StoredWeights, parameters_on_meta
from workers.models.llama import within_documents


@dataclass(slots=True, kw_only=True)
class HfTask:
    """Fulfils `DeferredTask`, and with adapters `AdapterTask`. Labels of -100 do not count."""

    model: HfModel
    data: TokenData
    seed: int
    configuration: Any
    stored: StoredWeights | None  # None: weights are drawn
    _drawn: DrawnWeights | None = field(default=None, init=False)
    _initialise: Any = field(default=None, init=False)  # transformers' own rule, for one part of the model
    _body: str = field(default="", init=False)  # what the model calls itself without its head

    def build(self) -> nn.Module:
        """Build the structure; parameters on the meta device, tables for real. Only adapters train where there are any.

        Raises ConfigError for a configuration that makes no causal language model, and adapters that fit nowhere.
        """
        with parameters_on_meta():
            module = build_model(self.configuration, dtype=self._dtype)
            self._initialise, self._body = module._init_weights, module.base_model_prefix
            if self.model.lora is not None:
                module = add_adapters(module, self.model)
        self._drawn = DrawnWeights(module, seed=self.seed)
        return module  # type: ignore[no-any-return]

    def initial_weight(self, name: str) -> torch.Tensor:
        """See `DeferredTask`. Adapters begin as peft's do: A drawn, B zero, so that nothing changes at first."""
        assert self._drawn is not None, "build comes first"
        if ".lora_" in name:
            return self._drawn.draw(name, _zero if ".lora_B." in name else _draw_linear, by_parents=False)
        if self.stored is not None:
            return self.stored.read(original_name(name), body=self._body)
        return self._drawn.draw(name, self._initialise, by_parents=True)

    def is_base(self, name: str) -> bool:
        """See `AdapterTask`. A checkpoint of adapters is small, and needs the model that it was made for."""
        return self.model.lora is not None and ".lora_" not in name

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the decoder layers: the longest list of modules that lies in no other one, as experts do in theirs."""
        lists = {path: part for path, part in module.named_modules() if isinstance(part, nn.ModuleList)}
        outer = [
            list(part) for path, part in lists.items() if not any(path.startswith(f"{up}.") for up in lists)
        ]
        return max(outer, key=len, default=[])

    def loss_sum(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the counted tokens, in fp32 whatever the logits are."""
        logits_BTV = module(input_ids=batch["tokens"], use_cache=False, **_documents(batch)).logits
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), batch["labels"].flatten(), reduction="sum")

    def num_tokens(self, batch: Batch) -> int:
        """Return how many of the B x T labels are counted."""
        return int((batch["labels"] != -100).sum())

    def dataset(self, cache_dir: Path) -> Dataset:
        """Open the samples. Raises DataError, also for ids that the model has no row for."""
        dataset = load_dataset(self.data, cache_dir)
        rows = self.configuration.get_text_config().vocab_size
        if dataset.vocab_size > rows:
            raise DataError(
                f"data.tokenizer: its {dataset.vocab_size} ids do not fit the {rows} rows of the model: "
                "name the model's own tokenizer.json, or raise vocab_size in model.config"
            )
        return dataset

    @property
    def _dtype(self) -> torch.dtype:
        """Frozen weights stay as the checkpoint has them; what is trained is fp32."""
        stored: torch.dtype | None = getattr(self.configuration, "dtype", None)
        return stored if self.model.lora is not None and stored is not None else torch.float32


def hf_task(model: HfModel, data: TokenData, *, seed: int) -> HfTask:
    """Find the model's files and read its configuration; builds nothing. Every rank calls it. Raises ConfigError."""
    files = find_files(model)
    stored = StoredWeights(files) if files is not None and model.weights == "pretrained" else None
    return HfTask(
        model=model, data=data, seed=seed, configuration=read_configuration(model, files), stored=stored
    )


def _documents(batch: Batch) -> Mapping[str, torch.Tensor]:
    """Return what keeps documents apart: an additive mask [B, 1, T, T], and positions that begin anew in each."""
    if "documents" not in batch:
        return {}
    documents_BT = batch["documents"]
    seen_B1TT = within_documents(documents_BT)
    # The lowest bf16 number: engines cast inputs, and in fp32's own range it would become infinite.
    mask_B1TT = torch.zeros(seen_B1TT.shape, device=seen_B1TT.device).masked_fill(
        ~seen_B1TT, torch.finfo(torch.bfloat16).min
    )
    return {"attention_mask": mask_B1TT, "position_ids": seen_B1TT[:, 0].sum(-1) - 1}


def _zero(owner: nn.Module) -> None:
    for parameter in owner.parameters():
        parameter.zero_()


def _draw_linear(owner: nn.Module) -> None:
    nn.Linear.reset_parameters(owner)  # type: ignore[arg-type]
