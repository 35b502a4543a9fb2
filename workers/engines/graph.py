"""Which parameters a loss depends on, read from autograd's graph before it is run backward."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn


def used_in(loss: torch.Tensor, parameters: Iterable[nn.Parameter]) -> list[bool]:
    """Return for each parameter whether `loss` depends on it. Local; costs one visit of every node of the graph."""
    reached = {id(node.variable) for node in _nodes(loss) if hasattr(node, "variable")}
    return [id(parameter) in reached for parameter in parameters]


def depend_on(loss: torch.Tensor, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Return `loss` with a gradient of zeros for each of `parameters`, so that a rank that did not use them keeps step."""
    touched: torch.Tensor = _DependOn.apply(loss, *parameters)  # type: ignore[no-untyped-call]
    return touched


class _DependOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parameters)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grad, *(torch.zeros_like(parameter) for parameter in ctx.saved_tensors)


def _nodes(loss: torch.Tensor) -> Iterable[Any]:
    """Yield every node of the graph behind `loss` once. A node that holds a parameter has it as `variable`."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(following for following, _ in node.next_functions)
