"""The manifest: what makes a directory of shards a checkpoint.

A checkpoint is engine-neutral: named tensors, cut into chunks, each a plain row-major byte range of a file with its
own digest. The manifest is written last; a directory without one does not exist for anybody.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, Self

from workers.contract.base import Message

MANIFEST_NAME: Final = "manifest.json"
FORMAT_VERSION: Final = 1
_ID = re.compile(r"^step-(\d{8,})\.g(\d+)\.a(\d+)\.r(\d+)\.([0-9a-f]{8})$")


class CheckpointId(Message):
    """The directory's name: no other generation, attempt or round can make the same one.

    `step` counts finished optimizer steps: a checkpoint of step s resumes with 0-based step s.
    """

    step: int
    generation: int
    attempt: int
    round: int
    nonce: str

    def __str__(self) -> str:
        return f"step-{self.step:08d}.g{self.generation}.a{self.attempt}.r{self.round}.{self.nonce}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a directory name; None where it is not one of ours."""
        found = _ID.match(name)
        if not found:
            return None
        step, generation, attempt, round_, nonce = found.groups()
        return cls(
            step=int(step), generation=int(generation), attempt=int(attempt), round=int(round_), nonce=nonce
        )

    @property
    def age_key(self) -> tuple[int, int, int, int]:
        """Sorts older before newer: by step, then by who wrote it. Never by clock, never as text."""
        return (self.step, self.generation, self.attempt, self.round)


class Chunk(Message):
    """One stored box of a tensor: `file[start : start + length]` holds `sizes` at `offsets`, row-major, little-endian."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int
    digest: str  # "xxh3_128:<hex>" of exactly these bytes


class StoredTensor(Message):
    """A named tensor: `model.<name>`, `optimizer.<name>.exp_avg`, ..."""

    dtype: str  # torch's name without the prefix: float32, bfloat16, int64, ...
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class ResumePoint(Message):
    """What training needs beside tensors. Identical on all ranks by construction."""

    step: int  # finished optimizer steps
    next_index: int  # first global index not yet trained: the data position
    first_step: int = (
        0  # the step that trained global index 0: of a fork on other data, the one it began with
    )
    seed: int
    tokens_seen: int
    data_digest: str  # of the data set's content and order rule; another one is refused
    config_digest: str
    trained: tuple[tuple[int, int], ...] = ()  # the lineage's ledger: spans of global indices trained so far
    repeated: int = 0  # how many of them were trained again
    loss_first: float | None = None  # of the lineage's first step
    loss_last: float | None = None  # of its newest
    validation_loss: float | None = None  # of the newest evaluation


class Manifest(Message):
    """`manifest.json`, published by an atomic rename, never changed afterwards."""

    format: Literal["shardyard-checkpoint"] = "shardyard-checkpoint"
    version: int = FORMAT_VERSION
    checkpoint: CheckpointId
    parent: str | None  # the checkpoint this lineage resumed from or saved before, by name
    parent_run: str | None = None  # path or URL of the run that the parent lies in; None: this one
    world_size: int  # of the writers: told, never needed to read
    resume: ResumePoint
    tensors: Mapping[str, StoredTensor]
    files: Mapping[str, int]  # name -> bytes, so that a missing or cut file is seen without reading it
    aliases: Mapping[str, str] = {}  # tied name -> stored name
    software: Mapping[str, str] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(self.files.values())
