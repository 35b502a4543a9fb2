"""transformers reads our export as its own Llama."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from workers.contract.config import LlamaModel
from workers.models.llama import Llama
from workers.models.llama_dimensions import LlamaDimensions, llama_dimensions


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"num_kv_heads": 4, "rope_theta": 500_000.0, "norm_eps": 1e-3}, {"num_kv_heads": 1}]
)
def test_transformers_computes_the_same_logits(
    write_export: Callable[[Llama, LlamaDimensions], Path], tie_embeddings: bool, fields: dict[str, float]
) -> None:
    model = LlamaModel.model_validate({"size": "nano", "tie_embeddings": tie_embeddings, **fields})
    dimensions = llama_dimensions(model, vocab_size=260)
    torch.manual_seed(3)
    ours = Llama(dimensions)
    with torch.no_grad():
        for parameter in ours.parameters():  # norms of 1 and small weights would hide a difference
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs, report = AutoModelForCausalLM.from_pretrained(
        write_export(ours, dimensions), output_loading_info=True
    )
    assert isinstance(theirs, LlamaForCausalLM)
    assert not any(report.values()), report
    tokens_BT = torch.randint(0, 257, (3, 32))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens_BT).logits, ours(tokens_BT), atol=1e-5, rtol=1e-5)
