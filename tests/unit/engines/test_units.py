"""How a module is cut into units, and what the cut does to it."""

import pytest
import torch
from torch import nn

from workers.engines.names import read_names
from workers.engines.optimizer import clip_factor
from workers.engines.units import cast_inputs, sharding_units
from workers.errors import ConfigError


def net(blocks: int = 3) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(blocks)])


def test_blocks_of_their_own_parameters_are_units_in_order() -> None:
    module = net()
    assert sharding_units(module, list(module)) == list(module)


def test_a_block_that_is_listed_twice_is_one_unit() -> None:
    module = net(1)
    assert sharding_units(module, [module[0], module[0]]) == [module[0]]


def test_blocks_that_share_a_weight_stay_with_the_root() -> None:
    module = net()
    module[2][0].weight = module[0][0].weight
    assert sharding_units(module, list(module)) == [module[1]]


def test_a_block_tied_to_the_rest_of_the_module_stays_with_the_root() -> None:
    module = net()
    module.head = nn.Linear(4, 4)
    module.head.weight = module[1][0].weight
    assert sharding_units(module, list(module)[:3]) == [module[0], module[2]]


def test_a_block_inside_a_block_is_no_unit_and_neither_is_the_outer_one() -> None:
    module = net()
    assert sharding_units(module, [module[0], module[0][0], module[1]]) == [module[1]]


def test_a_block_of_another_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no part of build\(\)'s: \['Linear'\]"):
        sharding_units(net(), [nn.Linear(1, 1)])


def test_inputs_are_cast_wherever_they_are_and_integers_are_not() -> None:
    class Seen(nn.Module):
        def forward(self, x: object, *, more: object) -> object:
            return x, more

    module = Seen()
    cast_inputs(module, torch.bfloat16)
    x, more = module([torch.ones(1)], more={"ids": torch.ones(1, dtype=torch.int64), "name": "n"})
    assert x[0].dtype == torch.bfloat16
    assert more["ids"].dtype == torch.int64
    assert more["name"] == "n"


def test_tied_names_point_to_the_stored_one_and_only_persistent_buffers_count() -> None:
    module = net(2)
    module[1][0].weight = module[0][0].weight
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("same", module.kept)
    module.register_buffer("table", torch.ones(1), persistent=False)
    names = read_names(module)
    assert names.aliases == {"model.1.0.weight": "model.0.0.weight", "buffer.same": "buffer.kept"}
    assert names.persistent_buffers == {"kept"}


@pytest.mark.parametrize(
    ("norm", "limit", "factor"),
    [(4.0, 1.0, 0.25), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (5.0, None, 1.0), (1e-30, 1e-31, 0.1)],
)
def test_only_a_norm_above_the_limit_is_scaled(norm: float, limit: float | None, factor: float) -> None:
    assert clip_factor(norm, limit) == pytest.approx(factor)


def test_a_name_that_is_tied_to_the_base_is_no_alias_of_a_checkpoint() -> None:
    module = net(3)
    module[1][0].weight = module[0][0].weight
    module[2][0].bias = module[1][0].bias
    names = read_names(module, is_base=lambda name: name.startswith("0."))
    assert names.base == {"0.0.weight", "0.0.bias"}
    assert names.aliases == {"model.2.0.bias": "model.1.0.bias"}
