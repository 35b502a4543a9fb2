"""Saving: copy the state (the whole stall), then write and publish it behind training. One save in flight."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self, assert_never

import torch
import torch.distributed as dist
import xxhash

from workers.checkpointing.staging import StagedPlanner, Staging
from workers.checkpointing.write import (
    Broken,
    NotPublished,
    Outcome,
    Published,
    WriteJob,
    run,
    software_versions,
)
from workers.contract.events import EventKind
from workers.contract.launch import RankOrder
from workers.contract.manifest import CheckpointId, Manifest, ResumePoint
from workers.contract.rank_messages import RankMessage, Told
from workers.errors import StorageError

FINAL_TRIES: Final = 3


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
    nonce: str  # 8 hex digits

    @classmethod
    def of(cls, order: RankOrder) -> Self:
        """Take it from the rank's order."""
        return cls(
            generation=order.request.generation,
            attempt=order.round.attempt,
            round=order.round.round,
            nonce=order.round.nonce,
        )

    def checkpoint_id(self, step: int, *, failed_tries: int = 0) -> CheckpointId:
        """Name the checkpoint after `step` finished steps. Each try has a name of its own: no two share a file."""
        again = xxhash.xxh32_hexdigest(f"{self.nonce}.{failed_tries}".encode())
        return CheckpointId(
            step=step,
            generation=self.generation,
            attempt=self.attempt,
            round=self.round,
            nonce=again if failed_tries else self.nonce,
        )


class _Flight:
    """A save behind training: its thread, and what came of it."""

    def __init__(self, job: WriteJob, started: float) -> None:
        self.checkpoint = job.head.checkpoint
        self.stall_seconds = 0.0
        self.write_seconds = 0.0
        self._started = started
        self._job = job
        self._outcome: Outcome | None = None
        # A daemon: a rank that ends early must not wait for ranks that are gone.
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._outcome = run(self._job)
        self.write_seconds = time.perf_counter() - self._started

    @property
    def has_landed(self) -> bool:
        return not self._thread.is_alive()

    def outcome(self) -> Outcome:
        """Wait for the end."""
        self._thread.join()
        assert self._outcome is not None
        return self._outcome


class Saver:
    """Saves the state of one round. Every rank makes one and makes the same calls in the same order.

    `parent` is the checkpoint that the round resumed from, `parent_run` the run that it lies in, if not this one. Failed saves are told as an event and tried again at the
    next due step; only `save_final` raises StorageError. Any call raises what broke the group of writers.
    Events leave through `emit`, always on the caller's thread, and from rank 0 only.
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
        parent_run: str | None = None,
        keep_best: int = 0,
        mode: Literal["async", "sync"] = "async",
    ) -> None:
        self._run_dir = run_dir
        self._author = author
        self._world = world
        self._keep = keep
        self._keep_best = keep_best
        self._emit = emit
        self._newest = parent
        self._newest_run = parent_run
        self._is_async = mode == "async"
        self._software = software_versions()
        self._staging: Staging | None = None
        self._flight: _Flight | None = None
        self._failed_tries: Counter[int] = Counter()
        self._last_failure = ""

    @property
    def newest(self) -> str | None:
        """The newest checkpoint of this lineage: published by this saver, else its parent."""
        return self._newest

    def save(
        self, state: Mapping[str, torch.Tensor], aliases: Mapping[str, str], resume: ResumePoint
    ) -> float:
        """Start a save of step `resume.step`; collective. Returns the seconds for which training stood still.

        A save in flight is waited for first. On return `state` may be changed: it was copied.
        """
        started = time.perf_counter()
        self.wait()
        if self._staging is None:
            self._staging = Staging(state)
        self._staging.copy(state)
        flight = _Flight(self._job(self._staging, aliases, resume), started)
        self._flight = flight
        if not self._is_async:
            flight.outcome()
        flight.stall_seconds = time.perf_counter() - started
        self.poll()
        return flight.stall_seconds

    def poll(self) -> None:
        """Tell what the save in flight came to, if it has ended. Call it after every step; costs nothing, no collective."""
        if self._flight is not None and self._flight.has_landed:
            self.wait()

    def wait(self) -> None:
        """Wait for the save in flight and tell what it came to."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        match flight.outcome():
            case Published() as outcome:
                self._newest, self._newest_run = str(flight.checkpoint), None
                self._tell_published(flight, outcome)
            case NotPublished(reason=reason):
                self._failed_tries[flight.checkpoint.step] += 1
                self._last_failure = reason
                self._tell_failed(flight, reason)
            case Broken(error=error):
                raise error
            case other:
                assert_never(other)

    def save_final(
        self, state: Mapping[str, torch.Tensor], aliases: Mapping[str, str], resume: ResumePoint
    ) -> str:
        """Save the last step and wait until it is published; return its name. Collective.

        A step that is published already is not written twice. Raises StorageError after 3 failed tries.
        """
        self.wait()
        tries = 0
        while self._newest_step() != resume.step:
            if tries == FINAL_TRIES:
                raise StorageError(f"the final checkpoint failed {tries} times: {self._last_failure}")
            self.save(state, aliases, resume)
            self.wait()
            tries += 1
        assert self._newest is not None
        return self._newest

    def _newest_step(self) -> int | None:
        newest = CheckpointId.parse(self._newest or "")
        return newest.step if newest else None

    def _job(self, staging: Staging, aliases: Mapping[str, str], resume: ResumePoint) -> WriteJob:
        failed_tries = self._failed_tries[resume.step]
        head = Manifest(
            checkpoint=self._author.checkpoint_id(resume.step, failed_tries=failed_tries),
            parent=self._newest,
            parent_run=self._newest_run,
            world_size=self._world.world_size,
            resume=resume,
            tensors={},
            files={},
            aliases=dict(aliases),
            software=self._software,
        )
        return WriteJob(
            run_dir=self._run_dir,
            head=head,
            planner=StagedPlanner(staging),
            group=self._world.checkpoint_group,
            is_coordinator=self._world.rank == 0,
            keep=self._keep,
            keep_best=self._keep_best,
        )

    def _tell_published(self, flight: _Flight, outcome: Published) -> None:
        name, step = str(flight.checkpoint), flight.checkpoint.step
        data = {
            "checkpoint": name,
            "bytes": outcome.bytes,
            "stall_seconds": flight.stall_seconds,
            "write_seconds": flight.write_seconds,
        }
        self._tell(EventKind.CHECKPOINT_PUBLISHED, f"published {name}", step, data)
        for old in outcome.deleted:
            self._tell(
                EventKind.CHECKPOINT_DELETED,
                f"deleted {old}, keep is {self._keep}",
                step,
                {"checkpoint": old},
            )
        for left in outcome.swept:
            message = f"removed {left}: it has no manifest, so it was never published whole, or somebody deleted that"
            self._tell(EventKind.CHECKPOINT_DELETED, message, step, {"checkpoint": left})
        if outcome.trouble:
            self._tell(EventKind.NOTE, f"old checkpoints stay for now: {outcome.trouble}", step, {})

    def _tell_failed(self, flight: _Flight, reason: str) -> None:
        name, step = str(flight.checkpoint), flight.checkpoint.step
        message = f"{name} was not published: {reason}; the next save tries again"
        self._tell(EventKind.CHECKPOINT_FAILED, message, step, {"checkpoint": name, "reason": reason})

    def _tell(self, kind: EventKind, message: str, step: int, data: Mapping[str, Any]) -> None:
        if self._world.rank == 0:
            self._emit(Told(kind=kind, message=message, step=step, data=data))
