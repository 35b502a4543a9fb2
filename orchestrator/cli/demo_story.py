"""What the demo watches for and proves: when to kill, whom, and what came of it. Pure; told by the job's own events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from orchestrator.api.views import JobView, SamplesView
from workers.contract.events import Event, EventKind, Sample
from workers.contract.manifest import CheckpointId

KILL_AFTER: Final = 0.4  # share of all steps
STEPS_PAST_CHECKPOINT: Final = 5  # so that the kill costs something


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL: to whom, when, and how far the job was known to be."""

    rank: int
    pid: int
    at: datetime
    step: int


@dataclass(slots=True)
class Story:
    """Everything the demo saw, in order."""

    events: list[Event] = field(default_factory=list)
    samples: dict[tuple[int, int, int, int], Sample] = field(default_factory=dict)
    kill: Kill | None = None

    def hear(self, event: Event) -> None:
        """Take one event."""
        self.events.append(event)

    def look(self, samples: SamplesView) -> None:
        """Take the newest samples; each counts once."""
        for sample in samples.latest:
            self.samples[(sample.attempt, sample.round, sample.rank, sample.step)] = sample

    def victim(self, job: JobView) -> tuple[int, int] | None:
        """Rank and pid to kill now: the last rank of a running round, well past a checkpoint, once only."""
        if self.kill is not None or job.state != "running" or job.step < KILL_AFTER * job.target_steps:
            return None
        saved = saved_steps(self.events)
        started = [event for event in self.events if event.kind is EventKind.ROUND_STARTED]
        if not saved or not started or job.step < saved[-1] + STEPS_PAST_CHECKPOINT:
            return None
        pids = {int(rank): int(pid) for rank, pid in started[-1].data.get("pids", {}).items()}
        return (max(pids), pids[max(pids)]) if pids else None

    def recovery(self) -> Event | None:
        """Return the first optimizer step after the kill."""
        if self.kill is None:
            return None
        return next((e for e in self.events if e.kind is EventKind.FIRST_STEP and e.at > self.kill.at), None)

    def recovery_seconds(self) -> float | None:
        """From just before the kill to the end of the next optimizer step; one machine, one clock."""
        first = self.recovery()
        return None if first is None or self.kill is None else (first.at - self.kill.at).total_seconds()

    def resumed_from_step(self) -> int | None:
        """Finished steps of the checkpoint that the round after the kill began with."""
        if self.kill is None:
            return None
        for event in self.events:
            if event.kind is EventKind.ROUND_STARTED and event.at > self.kill.at:
                found = CheckpointId.parse(str(event.data.get("resume_from") or ""))
                return found.step if found else 0
        return None

    def newest(self) -> list[Sample]:
        """Return the newest sample of each rank that measured its memory."""
        by_rank: dict[int, Sample] = {}
        for sample in self.samples.values():
            if sample.memory_bytes and (sample.rank not in by_rank or sample.at > by_rank[sample.rank].at):
                by_rank[sample.rank] = sample
        return [by_rank[rank] for rank in sorted(by_rank)]


def saved_steps(events: Sequence[Event]) -> list[int]:
    """Steps of the checkpoints that were published, in the order they were."""
    names = [CheckpointId.parse(name) for name in saved_names(events)]
    return [name.step for name in names if name is not None]


def saved_names(events: Sequence[Event]) -> list[str]:
    """Names of the checkpoints that were published, in the order they were."""
    return [str(e.data.get("checkpoint", "")) for e in events if e.kind is EventKind.CHECKPOINT_PUBLISHED]


def summary(story: Story, job: JobView) -> Mapping[str, Any]:
    """Build the one object that `demo --json` ends with."""
    result, kill = job.result, story.kill
    memory = story.newest()
    resumed = story.resumed_from_step()
    return {
        "status": job.state,
        "reason": job.reason,
        "job_id": job.id,
        "attempts": _count(story.events, EventKind.ATTEMPT_STARTED),
        "rounds": _count(story.events, EventKind.ROUND_STARTED),
        "kills": int(kill is not None),
        "killed_rank": kill.rank if kill else None,
        "resumed_from_step": resumed,
        "lost_steps": result.replayed_steps if result else None,
        "final_step": result.final_step if result else job.step,
        "loss_first": result.loss_first if result else None,
        "loss_last": result.loss_last if result else None,
        "samples_repeated": result.samples_repeated if result else None,
        "samples_missing": result.samples_missing if result else None,
        "recovery_seconds": story.recovery_seconds(),
        "tokens_per_second": result.tokens_per_second if result else None,
        "memory_bytes": dict(memory[0].memory_bytes) if memory else {},
        "checkpoints": saved_names(story.events),
        "export_path": result.export_path if result else None,
        "run_dir": job.run_dir,
    }


def _count(events: Sequence[Event], kind: EventKind) -> int:
    return sum(event.kind is kind for event in events)
