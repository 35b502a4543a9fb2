"""Sizes of the Llama family and their description for other programs. Pure: no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from workers.contract.config import LlamaModel
from workers.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaDimensions:
    """Everything that fixes a Llama module's structure."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    rope_theta: float
    norm_eps: float
    tie_embeddings: bool

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Parameters of the module, a tied table counted once."""
        attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_size
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        tables = (1 if self.tie_embeddings else 2) * self.vocab_size * self.hidden_size
        return tables + self.num_layers * layer + self.hidden_size


# size -> (hidden, intermediate, layers, heads, kv heads); parameters with the bytes vocabulary and a tied head
_SIZES: Final[Mapping[str, tuple[int, int, int, int, int]]] = {
    "nano": (48, 96, 2, 4, 2),  # 0.05 M: tests
    "tiny": (256, 704, 4, 8, 4),  # 3.0 M: learns visibly in a minute of two CPU cores
    "small": (384, 1024, 5, 6, 3),  # 8.2 M
    "20m": (512, 1152, 8, 8, 4),  # 20.6 M: what benchmarks measure
    "125m": (768, 2048, 12, 12, 12),  # as wide and deep as GPT-2 small (Radford et al. 2019)
    "350m": (1024, 2816, 24, 16, 16),  # as GPT-2 medium
    "1b": (2048, 8192, 16, 32, 8),  # Llama 3.2 1B; the rest as published by Meta, too
    "3b": (3072, 8192, 28, 24, 8),  # Llama 3.2 3B
    "7b": (4096, 11008, 32, 32, 32),  # Llama 2 7B (Touvron et al. 2023)
    "8b": (4096, 14336, 32, 32, 8),  # Llama 3.1 8B
    "13b": (5120, 13824, 40, 40, 40),  # Llama 2 13B
    "34b": (8192, 22016, 48, 64, 8),  # Code Llama 34B (Roziere et al. 2023)
    "70b": (8192, 28672, 80, 64, 8),  # Llama 2 and 3 70B
}


def llama_dimensions(model: LlamaModel, *, vocab_size: int) -> LlamaDimensions:
    """Resolve `model.size` and its overrides; `vocab_size` is what the tokenizer needs, taken if the job names none.

    Raises ConfigError naming the field when the numbers do not make a model.
    """
    hidden, intermediate, layers, heads, kv_heads = _SIZES[model.size]
    num_heads = model.num_heads or heads
    # A job that changes the heads alone shall not trip over the size's own kv heads: then each head has its own.
    num_kv_heads = model.num_kv_heads or (kv_heads if num_heads % kv_heads == 0 else num_heads)
    dimensions = LlamaDimensions(
        vocab_size=model.vocab_size or vocab_size,
        hidden_size=model.hidden_size or hidden,
        intermediate_size=model.intermediate_size or intermediate,
        num_layers=model.num_layers or layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        rope_theta=model.rope_theta,
        norm_eps=model.norm_eps,
        tie_embeddings=model.tie_embeddings,
    )
    problem = _problem(dimensions, vocab_size)
    if problem:
        raise ConfigError(problem)
    return dimensions


def _problem(d: LlamaDimensions, needed_vocab_size: int) -> str | None:
    """Say what is wrong with the numbers, and what would be right."""
    if d.vocab_size < needed_vocab_size:
        return f"model.vocab_size: {d.vocab_size} is below the {needed_vocab_size} ids that the data uses: leave it out"
    if d.hidden_size % d.num_heads:
        return f"model.hidden_size: {d.hidden_size} is not a multiple of model.num_heads {d.num_heads}"
    if d.head_size % 2:
        return (
            f"model.num_heads: {d.num_heads} heads of hidden_size {d.hidden_size} are {d.head_size} wide; "
            "rotary positions turn pairs, so the width of a head must be even"
        )
    if d.num_heads % d.num_kv_heads:
        return f"model.num_heads: {d.num_heads} is not a multiple of model.num_kv_heads {d.num_kv_heads}"
    return None


def hf_config(
    dimensions: LlamaDimensions, *, seq_len: int, begin: int | None = None, ends: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the `config.json` with which transformers reads an export as `LlamaForCausalLM`.

    Tensor names need no translation: `workers.models.llama` uses the same. With a tied head, `lm_head.weight` is not
    in the file. `seq_len` is the longest sequence seen in training; `begin` is the id that begins a document, `ends`
    are those at which `generate` of transformers stops.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": dimensions.vocab_size,
        "hidden_size": dimensions.hidden_size,
        "intermediate_size": dimensions.intermediate_size,
        "num_hidden_layers": dimensions.num_layers,
        "num_attention_heads": dimensions.num_heads,
        "num_key_value_heads": dimensions.num_kv_heads,
        "head_dim": dimensions.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": seq_len,
        "rms_norm_eps": dimensions.norm_eps,
        "rope_theta": dimensions.rope_theta,  # transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": dimensions.rope_theta},  # transformers 5
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": dimensions.tie_embeddings,
        "bos_token_id": begin,
        "eos_token_id": list(ends) or None,
        "torch_dtype": "float32",
    }


def dimensions_from_hf(config: Mapping[str, Any]) -> LlamaDimensions:
    """Read what `hf_config` wrote. Raises KeyError for a configuration that is not ours."""
    return LlamaDimensions(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
        tie_embeddings=config["tie_word_embeddings"],
    )
