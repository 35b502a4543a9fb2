"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, a tied or untied head.

Module names and the order of rotary pairs are those of transformers' `LlamaForCausalLM`, so an export is the state
dict itself. The module has no buffer: rotary tables are computed on the device in fp32 where they are used, so that
no engine shards, casts or saves them.

Shape suffixes: B sequences, T positions, D hidden, H heads, K key/value heads, E width of a head, R half of it,
F intermediate, V vocabulary.
"""

# ruff: noqa: N803, N806 -- shape suffixes are upper case

import math
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 -- what everybody calls it
from torch import nn

from workers.models.llama_dimensions import LlamaDimensions

_INIT_STD: Final = 0.02


class Llama(nn.Module):
    """Token ids to logits."""

    def __init__(self, dimensions: LlamaDimensions) -> None:
        """Build and initialise from torch's default generator: normal with standard deviation 0.02, norms 1.

        The projections that write into the residual stream get 0.02 / sqrt(2 * layers) (GPT-2, section 2.3).
        """
        super().__init__()
        self.model = _Decoder(dimensions)
        self.lm_head = nn.Linear(dimensions.hidden_size, dimensions.vocab_size, bias=False)
        if dimensions.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        for name, parameter in self.named_parameters():  # a tied table comes once
            std = initial_std(dimensions, name)
            if std is not None:
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens_BT: torch.Tensor, documents_BT: torch.Tensor | None = None) -> torch.Tensor:
        """Map int64 ids [B, T] to logits [B, T, V] in the dtype of the weights. Position t sees tokens 0..t.

        With `documents_BT`, equal numbers being one document, it sees those of its own alone. Rotary attention depends
        on distances, which stay as they are within a document, so positions need not begin anew.
        """
        hidden_BTD = self.model(tokens_BT, documents_BT)
        logits_BTV: torch.Tensor = self.lm_head(hidden_BTD)
        return logits_BTV


class _Decoder(nn.Module):
    def __init__(self, dimensions: LlamaDimensions) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(dimensions.vocab_size, dimensions.hidden_size)
        self.layers = nn.ModuleList(_Layer(dimensions) for _ in range(dimensions.num_layers))
        self.norm = nn.RMSNorm(dimensions.hidden_size, eps=dimensions.norm_eps)

    def forward(self, tokens_BT: torch.Tensor, documents_BT: torch.Tensor | None) -> torch.Tensor:
        x_BTD = self.embed_tokens(tokens_BT)
        mask_B1TT = None if documents_BT is None else within_documents(documents_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_B1TT)
        normed_BTD: torch.Tensor = self.norm(x_BTD)
        return normed_BTD


class _Layer(nn.Module):
    """One unit of sharding and of recomputation."""

    def __init__(self, dimensions: LlamaDimensions) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(dimensions.hidden_size, eps=dimensions.norm_eps)
        self.self_attn = _Attention(dimensions)
        self.post_attention_layernorm = nn.RMSNorm(dimensions.hidden_size, eps=dimensions.norm_eps)
        self.mlp = _SwiGLU(dimensions)

    def forward(self, x_BTD: torch.Tensor, mask_B1TT: torch.Tensor | None = None) -> torch.Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), mask_B1TT)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Causal grouped-query attention: H // K query heads share each key/value head (Ainslie et al. 2023)."""

    def __init__(self, dimensions: LlamaDimensions) -> None:
        super().__init__()
        self.head_size, self.rope_theta = dimensions.head_size, dimensions.rope_theta
        self.is_grouped = dimensions.num_kv_heads < dimensions.num_heads
        query_size = dimensions.num_heads * self.head_size
        kv_size = dimensions.num_kv_heads * self.head_size
        self.q_proj = nn.Linear(dimensions.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(dimensions.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(dimensions.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, dimensions.hidden_size, bias=False)

    def forward(self, x_BTD: torch.Tensor, mask_B1TT: torch.Tensor | None) -> torch.Tensor:
        q_BHTE = self._heads(self.q_proj(x_BTD))
        k_BKTE = self._heads(self.k_proj(x_BTD))
        v_BKTE = self._heads(self.v_proj(x_BTD))
        cos_TR, sin_TR = rotary_tables(
            x_BTD.shape[1], head_size=self.head_size, theta=self.rope_theta, device=x_BTD.device
        )
        mixed_BHTE = F.scaled_dot_product_attention(
            rotate(q_BHTE, cos_TR, sin_TR),
            rotate(k_BKTE, cos_TR, sin_TR),
            v_BKTE,
            attn_mask=mask_B1TT,
            is_causal=mask_B1TT is None,
            enable_gqa=self.is_grouped,
        )
        out_BTD: torch.Tensor = self.o_proj(mixed_BHTE.transpose(1, 2).flatten(2))
        return out_BTD

    def _heads(self, x_BTD: torch.Tensor) -> torch.Tensor:
        num_sequences, num_positions, _ = x_BTD.shape
        return x_BTD.view(num_sequences, num_positions, -1, self.head_size).transpose(1, 2)


class _SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, dimensions: LlamaDimensions) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dimensions.hidden_size, dimensions.intermediate_size, bias=False)
        self.up_proj = nn.Linear(dimensions.hidden_size, dimensions.intermediate_size, bias=False)
        self.down_proj = nn.Linear(dimensions.intermediate_size, dimensions.hidden_size, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        gated_BTF = F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)
        out_BTD: torch.Tensor = self.down_proj(gated_BTF)
        return out_BTD


def initial_std(dimensions: LlamaDimensions, name: str) -> float | None:
    """Return the standard deviation that a parameter begins with; None: it begins as ones."""
    if "norm" in name:
        return None
    is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    return _INIT_STD / math.sqrt(2 * dimensions.num_layers) if is_residual else _INIT_STD


def weight_shape(dimensions: LlamaDimensions, name: str) -> tuple[int, ...]:
    """Return the shape of the parameter that the module calls `name`."""
    d = dimensions
    query_size, kv_size = d.num_heads * d.head_size, d.num_kv_heads * d.head_size
    shapes = {
        "embed_tokens": (d.vocab_size, d.hidden_size),
        "lm_head": (d.vocab_size, d.hidden_size),
        "q_proj": (query_size, d.hidden_size),
        "k_proj": (kv_size, d.hidden_size),
        "v_proj": (kv_size, d.hidden_size),
        "o_proj": (d.hidden_size, query_size),
        "gate_proj": (d.intermediate_size, d.hidden_size),
        "up_proj": (d.intermediate_size, d.hidden_size),
        "down_proj": (d.hidden_size, d.intermediate_size),
    }
    return shapes.get(name.split(".")[-2], (d.hidden_size,))


def within_documents(documents_BT: torch.Tensor) -> torch.Tensor:
    """Return which positions see which: bool [B, 1, T, T], True for earlier ones of the same document and for itself."""
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return same_BTT.tril()[:, None]


def rotary_tables(
    num_positions: int, *, head_size: int, theta: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of position * theta ** (-2i / head_size), fp32 [T, R] each (Su et al. 2021, section 3.2)."""
    exponents_R = torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    positions_T = torch.arange(num_positions, device=device, dtype=torch.float32)
    angles_TR = torch.outer(positions_T, 1.0 / theta**exponents_R)
    return angles_TR.cos(), angles_TR.sin()


def rotate(x_BHTE: torch.Tensor, cos_TR: torch.Tensor, sin_TR: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + R) of each head, in fp32, back in the dtype of `x_BHTE`.

    Halves are paired, as transformers does, not neighbours, as the paper does: the weights differ by a permutation.
    """
    first_BHTR, second_BHTR = x_BHTE.chunk(2, dim=-1)
    turned = (first_BHTR * cos_TR - second_BHTR * sin_TR, second_BHTR * cos_TR + first_BHTR * sin_TR)
    return torch.cat(turned, dim=-1).to(x_BHTE.dtype)
