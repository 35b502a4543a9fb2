"""Saving: copy the state (the whole stall), then write and publish it behind training. One save in flight."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import torch
import torch.distributed as dist

from workers.contract.launch import RankOrder
from workers.contract.manifest import CheckpointId, ResumePoint
from workers.contract.rank_messages import RankMessage


class Writers(Protocol):
    """What the saver needs of the `World`: who writes with whom."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def checkpoint_group(self) -> dist.ProcessGroup | None:
        """A gloo group of its own, used by the saver's thread alone; None: this process writes by itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes: names checkpoints so that no other round can make the same name."""

    generation: int
    attempt: int
    round: int
    nonce: str

    @classmethod
    def of(cls, order: RankOrder) -> Self:
        """Take it from the rank's order."""
        return cls(
            generation=order.request.generation,
            attempt=order.round.attempt,
            round=order.round.round,
            nonce=order.round.nonce,
        )

    def checkpoint_id(self, step: int) -> CheckpointId:
        """Name the checkpoint after `step` finished steps."""
        return CheckpointId(
            step=step,
            generation=self.generation,
            attempt=self.attempt,
            round=self.round,
            nonce=self.nonce,
        )


class Saver:
    """Saves the state of one round. Every rank makes one and makes the same calls in the same order.

    `parent` is the checkpoint that the round resumed from. Failed saves are told as an event and tried again at the
    next due step; only `save_final` raises StorageError. Events leave through `emit`, always on the caller's thread,
    and from rank 0 only.
    """

    def __init__(
        self,
        *,
        run_dir: str,
        author: Author,
        world: Writers,
        keep: int,
        emit: Callable[[RankMessage], None],
        parent: str | None,
        mode: Literal["async", "sync"] = "async",
    ) -> None:
        raise NotImplementedError

    @property
    def newest(self) -> str | None:
        """The newest checkpoint of this lineage: published by this saver, else its parent."""
        raise NotImplementedError

    def save(
        self, state: Mapping[str, torch.Tensor], aliases: Mapping[str, str], resume: ResumePoint
    ) -> float:
        """Start a save of step `resume.step`; collective. Returns the seconds for which training stood still.

        A save in flight is waited for first. On return `state` may be changed: it was copied.
        """
        raise NotImplementedError

    def poll(self) -> None:
        """Tell what the save in flight came to, if it has ended. Call it after every step; costs nothing, no collective."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for the save in flight and tell what it came to."""
        raise NotImplementedError

    def save_final(
        self, state: Mapping[str, torch.Tensor], aliases: Mapping[str, str], resume: ResumePoint
    ) -> str:
        """Save the last step and wait until it is published; return its name. Collective.

        A step that is published already is not written twice. Raises StorageError after 3 failed tries.
        """
        raise NotImplementedError
