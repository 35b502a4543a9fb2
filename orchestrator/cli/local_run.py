"""`submit --local N`: a job without an orchestrator, drawn from what `shardyard-worker local` prints."""

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.cli.exit_code import CliError, ExitCode
from orchestrator.cli.pictures.progress import Standing, progress
from orchestrator.cli.pictures.result import result_facts
from orchestrator.cli.pictures.style import facts, state_text
from orchestrator.cli.pictures.timeline import event_line, event_row, failure_of, is_left_out
from orchestrator.cli.screen import Screen
from orchestrator.cli.signals import ended_like_ctrl_c, not_interrupted
from orchestrator.cli.wording import harmless
from orchestrator.cli.worker_process import WorkerStream
from orchestrator.spec.model import JobSpec
from workers.contract.base import Message
from workers.contract.events import Event, EventKind, JobResult, Sample

STDERR_LINES: Final = 12
STATE_OF: Final = {"finished": "succeeded", "stopped": "cancelled"}  # a service's words for the driver's


class Outcome(Message):
    """The last line of the process."""

    phase: str
    reason: str
    run_dir: str
    result: JobResult | None = None

    @property
    def state(self) -> str:
        """How a service would call this end."""
        return STATE_OF.get(self.phase, "failed")


class LocalRun:
    """What is known of the run so far."""

    def __init__(self, screen: Screen, spec: JobSpec) -> None:
        self.screen, self.spec = screen, spec
        self.state, self.reason = "starting", "starting Ray"
        self.samples: dict[int, Sample] = {}
        self.outcome: Outcome | None = None
        self._failure = ""
        self._began = time.monotonic()

    def take(self, line: Mapping[str, Any] | str) -> None:
        """Take one line of the process: an event, a sample, the outcome, or text that a library printed."""
        if isinstance(line, str):
            self.screen.aside(harmless(line))
            return
        self.screen.emit(line)
        match line.get("type"):
            case "event":
                self._event(Event.model_validate(line["data"]))
            case "sample":
                sample = Sample.model_validate(line["data"])
                self.samples[sample.rank] = sample
            case "outcome":
                self.outcome = Outcome.model_validate(line["data"])
                self.state, self.reason = self.outcome.state, self.outcome.reason
            case _:
                self.screen.aside(harmless(json.dumps(line)))

    def _event(self, event: Event) -> None:
        if not is_left_out(event, self._failure):
            draw = event_row if self.screen.is_live else event_line
            self.screen.show(draw(event, self._failure))
            self._failure = failure_of(event, self._failure)
        match event.kind:
            case EventKind.FIRST_STEP:
                self.state, self.reason = "running", ""
            case EventKind.ROUND_FAILED | EventKind.ATTEMPT_FAILED:
                self.state, self.reason = "recovering", event.message
            case _:
                pass

    def foot(self) -> RenderableType:
        """Draw the lines that redraw themselves."""
        step = max((sample.step for sample in self.samples.values()), default=0)
        standing = Standing(
            state=self.state, reason=self.reason, step=step, target_steps=self.spec.train.steps
        )
        return progress(
            standing,
            list(self.samples.values()),
            width=self.screen.out.width,
            elapsed_seconds=time.monotonic() - self._began,
        )

    def end(self, outcome: Outcome) -> RenderableType:
        """Draw how it ended."""
        rows: list[tuple[str, RenderableType]] = []
        if outcome.result is not None:
            rows += result_facts(outcome.result)
        elif outcome.reason:
            rows.append(("reason", Text(harmless(outcome.reason))))
        head = Text.assemble("\n", (self.spec.name, "bold"), "  ", state_text(outcome.state))
        return Group(head, facts([*rows, ("files", outcome.run_dir)]))


def run_local(screen: Screen, spec: JobSpec, *, num_workers: int, origin: str | None = None) -> ExitCode:
    """Run the job here to its end. Ctrl-C ends it, with all its processes, and raises KeyboardInterrupt."""
    run = LocalRun(screen, spec)
    with ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardyard-local-")))
        config = directory / "config.json"
        config.write_text(spec.training().model_dump_json(), encoding="utf-8")
        arguments = ["local", "--workers", str(num_workers), "--name", spec.name, "--json-lines"]
        arguments += ["--origin", origin] if origin is not None else []
        stream = WorkerStream([*arguments, str(config)], stderr_file=directory / "stderr")
        stack.callback(_stop, stream)
        with _display(screen, run):
            for line in stream.lines():
                run.take(line)
            code = stream.wait()
        if run.outcome is None:
            raise CliError(_last_words(stream.stderr_file, code))
    screen.show(run.end(run.outcome))
    return {"succeeded": ExitCode.DONE, "cancelled": ExitCode.CANCELLED}.get(run.state, ExitCode.FAILED)


def _stop(stream: WorkerStream) -> None:
    with not_interrupted():
        stream.stop()


def _display(screen: Screen, run: LocalRun) -> AbstractContextManager[object]:
    if not screen.is_live:
        return nullcontext()
    return Live(console=screen.out, refresh_per_second=8, transient=True, get_renderable=run.foot)


def _last_words(stderr_file: Path, code: int) -> str:
    lines = stderr_file.read_text(encoding="utf-8", errors="replace").splitlines()[-STDERR_LINES:]
    return "\n".join([f"shardyard-worker local ended with exit code {code}", *map(harmless, lines)])
