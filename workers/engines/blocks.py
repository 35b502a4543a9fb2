"""How a block runs: compiled or not; kept for its backward are all results, the expensive ones, or its inputs alone.

The block's forward itself is replaced, so names of parameters stay, and hooks of engines lie outside: what an engine
gathers for a backward is there when the forward runs again. Random streams are repeated; running statistics of batch
normalisation do not move a second time.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Literal, assert_never

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from workers.contract.config import Engine as EngineConfig
from workers.engines.batch_norm import frozen, statistics_of

Contexts = tuple[
    AbstractContextManager[Any], AbstractContextManager[Any]
]  # of forward, and of its repetition

_aten = torch.ops.aten
# Matrix products, attention and convolutions: nearly all the arithmetic, and a small part of the bytes. What lies
# between them (norms, activations, rotations) is cheap to do again (Korthikanti et al. 2022, section 5, turned round).
_KEPT: Final = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)


def prepare_blocks(blocks: Sequence[nn.Module], engine: EngineConfig) -> None:
    """Let each block keep less for its backward, and compile it, as `engine` says. Before an engine cuts the module.

    Of recomputation `full` costs one more forward, `selective` only its cheap part. Compilation is by block: blocks of
    one kind share their code. The first forward pays for it, seconds to a minute, with a C++ compiler (on CUDA Triton).
    """
    for block in dict.fromkeys(blocks):
        contexts = _contexts(engine.activation_checkpointing, statistics_of(block), engine.compile)
        if contexts is _selective:  # inside: the compiler has to see which operations are kept
            _checkpoint(block, _selective)
        if engine.compile:
            block.forward = torch.compile(block.forward)
        if contexts is not None and contexts is not _selective:
            _checkpoint(block, contexts)


def _contexts(
    mode: Literal["none", "selective", "full"], statistics: Sequence[_NormBase], compiles: bool
) -> Callable[[], Contexts] | None:
    """Return what makes the contexts of a block's forward and of its repetition; None if nothing is repeated."""
    match mode:
        case "none":
            return None
        case "selective" if not statistics:
            return _selective
        case "selective" if not compiles:
            return partial(_selective_but, statistics)
        case "selective" | "full":  # running statistics cannot be held still inside compiled code
            return partial(_full, statistics)
        case _:
            assert_never(mode)


def _checkpoint(block: nn.Module, contexts: Callable[[], Contexts]) -> None:
    block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)


def _full(statistics: Sequence[_NormBase]) -> Contexts:
    return nullcontext(), frozen(statistics)


def _selective_but(statistics: Sequence[_NormBase]) -> Contexts:
    forward, again = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    return forward, _Both(frozen(statistics), again)  # the copies are no part of what is kept


def _selective() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    return contexts


def _policy(
    _context: SelectiveCheckpointContext, operation: Any, *_args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class _Both(AbstractContextManager[None]):
    """Two contexts as one."""

    def __init__(self, outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        self._outer.__exit__(*error)
