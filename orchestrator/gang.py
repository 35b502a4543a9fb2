"""A gang: workers that start together or not at all."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """How many workers, and what each holds of a node."""

    workers: int
    cpus_per_worker: int
    gpus_per_worker: int

    def __str__(self) -> str:
        """Say it in words: `2 workers x 1 CPU`."""
        gpus = f" and {counted(self.gpus_per_worker, 'GPU')}" if self.gpus_per_worker else ""
        return f"{counted(self.workers, 'worker')} x {counted(self.cpus_per_worker, 'CPU')}{gpus}"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: `1 CPU`, `2 CPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
