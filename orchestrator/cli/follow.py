"""Follow a job to its end: events and log lines as they come, progress at the foot of the screen.

Following changes nothing: Ctrl-C ends the looking, the job goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.api.views import EventView, JobView, LogView, SamplesView
from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.pictures.progress import progress, progress_line
from orchestrator.cli.pictures.timeline import event_line, event_row, failure_of, is_left_out
from orchestrator.cli.screen import Screen
from orchestrator.cli.wording import harmless
from orchestrator.client import Client, UnreachableError

POLL_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 60.0  # how long the service may be away before following gives up
LOOKS_AFTER_END: Final = 3  # with nothing new, after the job has ended
PLAIN_EVERY_SECONDS: Final = 10.0  # progress lines on an output that does not redraw
LOG_BYTES_A_LOOK: Final = 256 * 1024


def is_rank_log(log: LogView) -> bool:
    """Whether a log is of a rank: what a user's code prints is there."""
    return log.rank is not None


@dataclass(slots=True)
class LogTail:
    """Where each log was read to, and the beginning of a line whose end has not been written yet."""

    wants: Callable[[LogView], bool] = is_rank_log
    offsets: dict[str, int] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)

    def read(self, client: Client, job_id: str) -> Iterator[tuple[LogView, str]]:
        """Whole new lines of the logs that are wanted, each with its log; those of one before the next is asked for."""
        for log in client.logs(job_id):
            if self.wants(log) and log.size_bytes > self.offsets.get(log.label, 0):
                yield from ((log, line) for line in self._new_lines(client, job_id, log))

    def rest(self, client: Client, job_id: str) -> Iterator[tuple[LogView, str]]:
        """All that is left of logs that grow no more, a last line without its end too."""
        for log in filter(self.wants, client.logs(job_id)):
            read_to = -1
            while read_to < self.offsets.get(log.label, 0) < log.size_bytes:
                read_to = self.offsets.get(log.label, 0)
                yield from ((log, line) for line in self._new_lines(client, job_id, log))
            if last := self.partial.pop(log.label, ""):
                yield log, last

    def _new_lines(self, client: Client, job_id: str, log: LogView) -> list[str]:
        offset = self.offsets.get(log.label, 0)
        chunk = client.read_log(job_id, log, offset=offset, limit_bytes=LOG_BYTES_A_LOOK)
        self.offsets[log.label] = chunk.next_offset
        text = (self.partial.get(log.label, "") + chunk.text).replace("\r\n", "\n").replace("\r", "\n")
        *lines, self.partial[log.label] = text.split("\n")
        return lines


class Follower:
    """One job that is looked at until it ends."""

    def __init__(
        self,
        client: Client,
        screen: Screen,
        job: JobView,
        *,
        wants_log: Callable[[LogView], bool] = is_rank_log,
        on_event: Callable[[EventView], None] | None = None,
        on_look: Callable[[JobView, SamplesView], None] | None = None,
    ) -> None:
        self.client, self.screen, self.job = client, screen, job
        self.samples = SamplesView(latest=())
        self._on_event, self._on_look = on_event, on_look
        self._tail = LogTail(wants=wants_log)
        self._after = 0
        self._note = ""
        self._failure = ""
        self._told_at = 0.0
        self._looks_after_end = 0

    def run(self) -> JobView:
        """Return the job once it has ended. Raises CliError (UNREACHABLE) when the service stays away."""
        answered_at = time.monotonic()
        with self._display():
            while True:
                try:
                    is_complete = self._look()
                    answered_at, self._note = time.monotonic(), ""
                    if is_complete:
                        return self.job
                except UnreachableError as error:
                    self._note = "the orchestrator does not answer; trying again"
                    if time.monotonic() - answered_at > PATIENCE_SECONDS:
                        raise CliError(
                            f"{error}; the job itself goes on without it",
                            remedy=f"Follow it again: shardyard logs {self.job.name} --follow",
                            code=ExitCode.UNREACHABLE,
                        ) from error
                    time.sleep(POLL_SECONDS)

    def _look(self) -> bool:
        """Take what is new; True when the job has ended and all of it was told.

        A job that has ended may hold resources for a moment; that is no reason to keep anybody waiting for long.
        """
        had_ended = self.job.is_terminal
        page = self.client.events(self.job.id, after=self._after, wait_seconds=POLL_SECONDS)
        self.job = self.client.job(self.job.id)
        self.samples = self.client.samples(self.job.id)
        for event in page.events:
            self._tell_event(event)
            self._after = event.cursor
        self._tell_lines(self._tail.read(self.client, self.job.id))
        self._tell_progress()
        if self._on_look is not None:
            self._on_look(self.job, self.samples)
        if not self.job.is_terminal:
            return False
        self._looks_after_end += had_ended and not page.events
        is_complete = page.is_complete or self._looks_after_end >= LOOKS_AFTER_END
        if is_complete:
            self._tell_lines(self._tail.rest(self.client, self.job.id))
        return is_complete

    def _tell_lines(self, lines: Iterable[tuple[LogView, str]]) -> None:
        for log, line in lines:
            self.screen.show_line(log_line(f"rank {log.rank}" if log.rank is not None else log.label, line))

    def _tell_event(self, event: EventView) -> None:
        self.screen.emit(event)
        if not is_left_out(event, self._failure):
            draw = event_row if self.screen.is_live else event_line
            self.screen.show(draw(event, self._failure))
            self._failure = failure_of(event, self._failure)
        if self._on_event is not None:
            self._on_event(event)

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if (
            not self.screen.is_live
            and self.job.state == "running"
            and now - self._told_at > PLAIN_EVERY_SECONDS
        ):
            self._told_at = now
            self.screen.say(progress_line(self.job, self.samples.latest))

    def _display(self) -> AbstractContextManager[object]:
        if not self.screen.is_live:
            return nullcontext()
        return Live(console=self.screen.out, refresh_per_second=8, transient=True, get_renderable=self._foot)

    def _foot(self) -> RenderableType:
        return progress(
            self.job,
            self.samples.latest,
            width=self.screen.out.width,
            elapsed_seconds=(datetime.now(UTC) - self.job.created_at).total_seconds(),
            note=self._note,
        )


def log_line(label: str, line: str) -> Text:
    """Draw one line of a log, after whose it is; an empty label draws the line alone."""
    return Text.assemble((f"{label} │ " if label else "", "dim"), harmless(line))


def result_code(job: JobView) -> ExitCode:
    """Exit code of a job that has ended."""
    return {
        "succeeded": ExitCode.DONE,
        "cancelled": ExitCode.CANCELLED,
    }.get(job.state, ExitCode.FAILED)
