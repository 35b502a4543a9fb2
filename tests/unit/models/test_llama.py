"""The Llama module and its dimensions."""

import math

import pytest
import torch
from torch import nn

from workers.contract.config import LlamaModel
from workers.errors import ConfigError
from workers.models.llama import Llama, rotary_tables, rotate
from workers.models.llama_dimensions import LlamaDimensions, dimensions_from_hf, hf_config, llama_dimensions

VOCAB = 260


def dimensions(**fields: object) -> LlamaDimensions:
    return llama_dimensions(LlamaModel.model_validate({"size": "nano", **fields}), vocab_size=VOCAB)


def build(seed: int = 0, **fields: object) -> Llama:
    torch.manual_seed(seed)
    return Llama(dimensions(**fields))


@pytest.mark.parametrize(("size", "millions"), [("nano", 0.05), ("tiny", 3.0), ("small", 8.2), ("20m", 20.6)])
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_each_size_has_the_parameters_it_says(size: str, millions: float, tie_embeddings: bool) -> None:
    resolved = dimensions(size=size, tie_embeddings=tie_embeddings)
    with torch.device("meta"):
        module = Llama(resolved)
    assert sum(parameter.numel() for parameter in module.parameters()) == resolved.num_parameters
    if tie_embeddings:
        assert resolved.num_parameters / 1e6 == pytest.approx(millions, abs=0.05)


def test_fields_override_the_size() -> None:
    resolved = dimensions(hidden_size=64, num_layers=3, num_heads=8, num_kv_heads=8, vocab_size=300)
    assert (resolved.hidden_size, resolved.num_layers, resolved.head_size) == (64, 3, 8)
    assert resolved.vocab_size == 300
    assert resolved.intermediate_size == dimensions().intermediate_size


def test_heads_alone_may_be_changed() -> None:
    assert dimensions(num_heads=3).num_kv_heads == 3
    assert dimensions(num_heads=8).num_kv_heads == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 50}, "model.hidden_size: 50 is not a multiple of model.num_heads 4"),
        ({"num_heads": 16}, "16 heads of hidden_size 48 are 3 wide"),
        ({"num_kv_heads": 3}, "model.num_heads: 4 is not a multiple of model.num_kv_heads 3"),
        ({"vocab_size": 256}, "model.vocab_size: 256 is below the 260 ids"),
    ],
)
def test_numbers_that_make_no_model_are_refused_by_field(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dimensions(**fields)


def test_the_same_seed_builds_the_same_weights_and_another_does_not() -> None:
    one, same, other = (dict(build(seed).named_parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_fresh_model_knows_nothing_yet() -> None:
    tokens_BT = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(0))
    logits_BTV = build()(tokens_BT)
    loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.roll(-1, 1).flatten())
    assert loss.item() == pytest.approx(math.log(VOCAB), abs=0.1)


def test_the_module_has_no_buffer_and_only_fp32_parameters() -> None:
    module = build()
    assert list(module.buffers()) == []
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_the_head_is_tied_only_if_asked(tie_embeddings: bool) -> None:
    module = build(tie_embeddings=tie_embeddings)
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == tie_embeddings


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_a_position_sees_nothing_after_it_and_everything_before(num_kv_heads: int) -> None:
    module = build(num_kv_heads=num_kv_heads)
    tokens_BT = torch.arange(12).unsqueeze(0)
    changed_BT = tokens_BT.clone()
    changed_BT[0, 5] = 99
    difference_T = (module(tokens_BT) - module(changed_BT)).abs().amax(-1)[0]
    assert difference_T[:5].max().item() < 1e-6
    assert difference_T[5:].min().item() > 1e-6


def test_shared_key_value_heads_equal_full_attention_with_repeated_weights() -> None:
    grouped, full = build(num_kv_heads=2), build(num_kv_heads=4)
    head = grouped.model.layers[0].self_attn.head_size
    weights = grouped.state_dict()
    for name in weights:
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            weights[name] = weights[name].unflatten(0, (2, head)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    tokens_BT = torch.arange(20).view(2, 10)
    torch.testing.assert_close(grouped(tokens_BT), full(tokens_BT), atol=1e-6, rtol=1e-5)


def test_rotary_products_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q_E, k_E = torch.randn(2, 16, generator=generator)
    tables = rotary_tables(40, head_size=16, theta=10_000.0, device=torch.device("cpu"))
    q_TE, k_TE = (rotate(x.expand(1, 1, 40, 16), *tables)[0, 0] for x in (q_E, k_E))
    scores_TT = q_TE @ k_TE.T
    for distance in (-7, 0, 3):
        diagonal = scores_TT.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(q_TE.norm(dim=-1), q_E.norm().expand(40))


def test_rotary_positions_are_turned_in_fp32_whatever_the_weights_are() -> None:
    x = torch.randn(1, 1, 300, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    tables = rotary_tables(300, head_size=16, theta=10_000.0, device=torch.device("cpu"))
    turned = rotate(x, *tables)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x.float(), *tables).bfloat16())


def test_a_bf16_module_gives_about_the_same_logits() -> None:
    module = build()
    tokens_BT = torch.arange(64).view(2, 32)
    exact = module(tokens_BT)
    rough = module.to(torch.bfloat16)(tokens_BT)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.03, rtol=0.05)


def test_a_sequence_of_one_token_works() -> None:
    assert build()(torch.tensor([[256]])).shape == (1, 1, VOCAB)


def test_the_exported_description_gives_the_dimensions_back() -> None:
    resolved = dimensions(rope_theta=500_000.0, tie_embeddings=False)
    assert dimensions_from_hf(hf_config(resolved, seq_len=128)) == resolved
