"""Events and samples as numbered segments in the run directory: they outlive driver, cluster and orchestrator."""

from pathlib import Path
from typing import IO, Final

from workers.contract.base import Message
from workers.contract.events import Event, Sample
from workers.contract.launch import LaunchRequest
from workers.contract.rundir import events_dir, samples_dir

SEGMENT_LINES: Final = 1000


class Segments:
    """Append-only lines, a new file every `SEGMENT_LINES`. Each line is handed to the kernel at once."""

    def __init__(self, directory: Path, generation: int) -> None:
        self._directory = directory
        self._generation = generation
        self._written = 0
        self._file: IO[bytes] | None = None

    def append(self, message: Message) -> None:
        """Write one line. Raises OSError."""
        if self._file is None or self._written % SEGMENT_LINES == 0:
            self.close()
            self._directory.mkdir(parents=True, exist_ok=True)
            name = f"g{self._generation}-{self._written:09d}.jsonl"
            self._file = (self._directory / name).open("ab", buffering=0)
        self._file.write(message.to_json().encode() + b"\n")
        self._written += 1

    def close(self) -> None:
        """Close the segment in work."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Journal:
    """Both kinds of lines of one generation."""

    def __init__(self, request: LaunchRequest) -> None:
        self._events = Segments(events_dir(request.run_dir), request.generation)
        self._samples = Segments(samples_dir(request.run_dir), request.generation)

    def event(self, event: Event) -> None:
        """Keep an event. Raises OSError."""
        self._events.append(event)

    def sample(self, sample: Sample) -> None:
        """Keep a sample. Raises OSError."""
        self._samples.append(sample)

    def close(self) -> None:
        """Close both segments."""
        self._events.close()
        self._samples.close()
