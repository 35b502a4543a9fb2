"""A checkpoint as lists show it: what its manifest says, who holds it, and what is wrong with it."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Self

from workers.contract.base import Message
from workers.contract.manifest import CheckpointId, Manifest


class StoredCheckpoint(Message):
    """One checkpoint in a list."""

    name: str
    step: int
    generation: int
    attempt: int
    round: int
    parent: str | None = None
    parent_run: str | None = None  # where the parent lies, if not in the same run
    world_size: int = 0
    tokens_seen: int = 0
    total_bytes: int = 0
    loss: float | None = None  # of its newest step
    validation_loss: float | None = None  # of the newest evaluation
    published_at: datetime | None = None  # by the storage's clock, for people only
    holders: tuple[str, ...] = ()  # who keeps it from being deleted: `pin`, `job-<id>`, `reader-<number>`
    problem: str = ""  # what is wrong with it; empty: nothing that was looked for

    @property
    def is_pinned(self) -> bool:
        """Whether a person keeps it."""
        return "pin" in self.holders

    @classmethod
    def of(cls, manifest: Manifest, *, published_at: datetime | None, holders: tuple[str, ...]) -> Self:
        """Describe a published checkpoint."""
        return cls(
            **manifest.checkpoint.model_dump(exclude={"nonce"}),
            name=str(manifest.checkpoint),
            parent=manifest.parent,
            parent_run=manifest.parent_run,
            world_size=manifest.world_size,
            tokens_seen=manifest.resume.tokens_seen,
            total_bytes=manifest.total_bytes,
            loss=manifest.resume.loss_last,
            validation_loss=manifest.resume.validation_loss,
            published_at=published_at,
            holders=holders,
        )

    @classmethod
    def damaged(cls, checkpoint: CheckpointId, problem: str) -> Self:
        """Describe one that was published once and is not whole any more."""
        return cls(**checkpoint.model_dump(exclude={"nonce"}), name=str(checkpoint), problem=problem)


class Exported(Message):
    """What an export holds. `passed_over` are damaged checkpoints newer than it: name -> what is wrong."""

    export_path: Path
    checkpoint: str
    step: int
    passed_over: Mapping[str, str] = {}
