"""What a block keeps for its backward: counted in operations, in bits of gradients, and in running statistics."""

from collections import Counter
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workers.contract.config import Engine
from workers.engines.blocks import prepare_blocks

Mode = Literal["none", "selective", "full"]


class Counted(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[operation.overloadpacket._qualified_op_name.removeprefix("aten::")] += 1
        return operation(*args, **(kwargs or {}))


class Attention(nn.Module):
    """A projection, attention over 3 positions, an activation, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.projection(x).view(2, 1, 3, 12).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).view(2, 3, 4)
        return nn.functional.dropout(nn.functional.gelu(mixed), 0.5)


def trained(block: type[nn.Module], mode: Mode) -> tuple[nn.Module, Counter[str]]:
    torch.manual_seed(0)
    module = nn.Sequential(block(), block())
    names = list(module.state_dict())
    prepare_blocks([*module, module[0]], Engine(activation_checkpointing=mode))
    assert list(module.state_dict()) == names
    torch.manual_seed(1)
    with Counted() as counted:
        module(torch.ones(2, 3, 4)).square().sum().backward()
    return module, counted.count


def test_selective_repeats_what_is_cheap_and_full_repeats_all() -> None:
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    counts = {mode: trained(Attention, mode)[1] for mode in ("none", "selective", "full")}
    assert {mode: (c["addmm"], c[attention], c["gelu"]) for mode, c in counts.items()} == {
        "none": (2, 2, 2),
        "selective": (2, 2, 4),
        "full": (4, 4, 4),
    }


class Normed(nn.Module):
    """Batch statistics before a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.projection = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.projection(self.norm(x + self.projection(x)))


@pytest.mark.parametrize("block", [Attention, Normed])
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_repeating_moves_no_bit_of_gradients_and_no_statistics_twice(
    block: type[nn.Module], mode: Mode
) -> None:
    plain, repeating = trained(block, "none")[0], trained(block, mode)[0]
    for one, other in zip(plain.parameters(), repeating.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.equal(other.grad)
    for one, other in zip(plain.buffers(), repeating.buffers(), strict=True):
        assert one.equal(other)
