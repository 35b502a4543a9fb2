"""Gradients of replicated parameters: summed in fp32 over micro-batches, then over ranks, bucket by bucket, behind backward."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from workers.engines.usage import agree_on_use

BUCKET_BYTES: Final = (
    25 * 2**20
)  # of fp32 gradient per collective: large enough for bandwidth, small enough to overlap


@dataclass(slots=True)
class _Bucket:
    """A flat fp32 sum over some parameters, and where its reduction stands."""

    total: torch.Tensor
    members: list[int]
    waiting: set[int] = field(default_factory=set)
    sent: torch.Tensor | None = None
    work: dist.Work | None = None


class GradientBuckets:
    """Sums gradients as backward makes them; in the last backward of a step each full bucket is sent off at once.

    Buckets are always all sent, in one fixed order, whatever parameters a rank used: ranks cannot wait for each other
    in different collectives.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, reduce_dtype: torch.dtype
    ) -> None:
        self._group = group
        self._reduce_dtype = reduce_dtype
        self._sums: dict[int, torch.Tensor] = {}
        self._buckets = self._cut(parameters)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.members}
        self._used = [False] * len(parameters)
        self._is_last = False
        self._num_sent = 0
        for index, parameter in enumerate(parameters):
            hook = partial(self._take, index)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def before_backward(self, *, is_first: bool, is_last: bool) -> None:
        """Start a step's sums from zero with its first micro-batch; send with its last."""
        if is_first:
            self._used = [False] * len(self._used)
            self._num_sent = 0
            for bucket in self._buckets:
                bucket.total.zero_()
        self._is_last = is_last
        for bucket in self._buckets:
            bucket.waiting = set(bucket.members)

    def finish(self) -> list[torch.Tensor | None]:
        """Return the gradient sums by parameter, None where no rank had one; collective, after the last backward."""
        for bucket in self._buckets:
            bucket.waiting.clear()
        self._send_full()
        for bucket in self._buckets:
            self._receive(bucket)
        if not self._used:
            return []
        used = agree_on_use(self._used, device=self._sums[0].device, group=self._group)
        return [self._sums[index] if flag else None for index, flag in enumerate(used)]

    def _cut(self, parameters: Sequence[nn.Parameter]) -> list[_Bucket]:
        """Pack parameters into buckets, last ones first: that is about the order in which backward finishes them."""
        packs: list[list[int]] = [[]]
        room = BUCKET_BYTES // 4
        for index in reversed(range(len(parameters))):
            if packs[-1] and parameters[index].numel() > room:
                packs.append([])
                room = BUCKET_BYTES // 4
            packs[-1].append(index)
            room -= parameters[index].numel()
        return [self._allocate(parameters, pack) for pack in packs if pack]

    def _allocate(self, parameters: Sequence[nn.Parameter], members: list[int]) -> _Bucket:
        total = torch.zeros(
            sum(parameters[index].numel() for index in members),
            dtype=torch.float32,
            device=parameters[members[0]].device,
        )
        start = 0
        for index in members:
            size = parameters[index].numel()
            self._sums[index] = total[start : start + size].view(parameters[index].shape)
            start += size
        return _Bucket(total=total, members=members)

    def _take(self, index: int, parameter: torch.Tensor) -> None:
        """Hook: autograd has finished this parameter's gradient for one micro-batch."""
        bucket = self._bucket_of[index]
        if bucket.work is not None:
            raise RuntimeError(
                "a parameter got a second gradient in one backward: use non-reentrant recomputation"
            )
        assert parameter.grad is not None
        self._sums[index].add_(parameter.grad)
        parameter.grad = None
        self._used[index] = True
        bucket.waiting.discard(index)
        if self._is_last:
            self._send_full()

    def _send_full(self) -> None:
        while self._num_sent < len(self._buckets) and not self._buckets[self._num_sent].waiting:
            bucket = self._buckets[self._num_sent]
            bucket.sent = bucket.total.to(self._reduce_dtype)
            if bucket.sent.numel():
                bucket.work = dist.all_reduce(bucket.sent, group=self._group, async_op=True)
            self._num_sent += 1

    def _receive(self, bucket: _Bucket) -> None:
        if bucket.work is not None and bucket.sent is not None:
            bucket.work.wait()
            if bucket.sent is not bucket.total:
                bucket.total.copy_(bucket.sent)
        bucket.work = bucket.sent = None
