"""The driver's thin edge: carries out what `rounds` decides, and gives back what the world answers."""

import logging
import queue
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, assert_never

from workers.contract.events import EventKind, JobResult
from workers.contract.launch import LaunchRequest, RoundOrder
from workers.contract.report import Desired
from workers.contract.rundir import export_dir
from workers.driver.checkpoints import Checkpoints
from workers.driver.effects import (
    Choose,
    Condemn,
    Effect,
    Forward,
    Input,
    LeaveAsked,
    Post,
    Say,
    StartAttempt,
    StopAsked,
    Tick,
)
from workers.driver.reporter import Reporter
from workers.driver.rounds import advance, begin
from workers.driver.state import Outcome, State

_LONGEST_WAIT_SECONDS: Final = 1.0
_EXPORT_SECONDS: Final = 3600.0

log = logging.getLogger(__name__)


class Group(Protocol):
    """A worker group as the driver handles it (`attempt.Attempt`)."""

    def start(self) -> None:
        """Ask for it. Returns at once."""
        ...

    def post(self, order: RoundOrder) -> None:
        """Put an order in force."""
        ...

    def leave(self) -> None:
        """Ask Ray for nothing more."""
        ...


class Driver:
    """One generation. `make_group(number, put)` makes its worker groups."""

    def __init__(
        self,
        request: LaunchRequest,
        *,
        reporter: Reporter,
        make_group: Callable[[int, Callable[[Input], None]], Group],
        inbox: "queue.SimpleQueue[Input]",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._reporter = reporter
        self._make_group = make_group
        self._inbox = inbox
        self._clock = clock
        self._group: Group | None = None
        self._checkpoints = Checkpoints(request, self._reporter.say)

    def run(self) -> State:
        """Live until the generation has an outcome. Raises StorageError if the run directory is not readable."""
        state, effects = begin(self._request, self._clock())
        answers = self._perform_all(effects)
        while state.outcome is None:
            given = answers.popleft() if answers else self._wait(state)
            state, effects = advance(state, given, self._clock())
            self._reporter.status(
                phase=state.phase
                if state.outcome is None
                else "running",  # the last word comes from `conclude`
                step=state.step,
                counters=state.counters,
            )
            answers.extend(self._perform_all(effects))
        return state

    def conclude(self, state: State) -> Outcome:
        """Export what is to be exported and say the last word. A lost generation says none: another one will."""
        outcome = state.outcome
        assert outcome is not None
        phase = outcome.phase
        if phase == "lost":
            self._say(last_word(outcome))
            return outcome
        if outcome.result is not None:
            outcome = replace(outcome, result=self._export(outcome.result))
        self._say(last_word(outcome))
        self._reporter.status(
            phase=phase,
            step=state.step,
            counters=state.counters,
            verdict=outcome.verdict,
            result=outcome.result,
        )
        return outcome

    def leave(self) -> None:
        """Ask Ray for nothing more, in any thread; then this process may leave it."""
        if self._group is not None:
            self._group.leave()

    def _wait(self, state: State) -> Input:
        until = state.until if state.until is not None else self._clock() + _LONGEST_WAIT_SECONDS
        try:
            return self._inbox.get(timeout=min(max(until - self._clock(), 0.0), _LONGEST_WAIT_SECONDS))
        except queue.Empty:
            return Tick()

    def _perform_all(self, effects: tuple[Effect, ...]) -> deque[Input]:
        answers: deque[Input] = deque()
        for effect in effects:
            answer = self._perform(effect)
            if answer is not None:
                answers.append(answer)
        return answers

    def _perform(self, effect: Effect) -> Input | None:
        match effect:
            case Say():
                self._say(effect)
            case Forward():
                self._reporter.forward(effect)
            case StartAttempt(attempt=number):
                self._group = self._make_group(number, self._inbox.put)
                self._group.start()
            case Post(order=order):
                if self._group is not None:
                    self._group.post(order)
            case Condemn(checkpoint=name):
                self._checkpoints.condemn(name)
            case Choose(name=name):
                return self._checkpoints.choose(name)
            case _:
                assert_never(effect)
        return None

    def _say(self, said: Say) -> None:
        self._reporter.say(said)
        if said.kind is EventKind.CHECKPOINT_PUBLISHED:
            self._checkpoints.let_go_of_origin()

    def _export(self, result: JobResult) -> JobResult:
        """Write the model in a process of its own: it needs torch. A failed export is told, the job stays finished."""
        if self._request.config.export == "none":
            return result
        target = export_dir(self._request.run_dir)
        command = [sys.executable, "-P", "-m", "workers.cli", "export", self._request.storage]
        command += ["--checkpoint", result.checkpoint, "--to", str(target)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_EXPORT_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            last_words = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            self._say(Say(kind=EventKind.NOTE, message=f"the export failed: {' '.join(last_words)}"))
            return result
        self._say(Say(kind=EventKind.EXPORTED, message=f"exported to {target}", data={"path": str(target)}))
        return result.model_copy(update={"export_path": str(target)})


def last_word(outcome: Outcome) -> Say:
    """The event that ends a generation's timeline. Pure."""
    match outcome.phase:
        case "finished":
            assert outcome.result is not None
            message = f"finished after step {outcome.result.final_step}"
            return Say(kind=EventKind.FINISHED, message=message, data=outcome.result.model_dump(mode="json"))
        case "failed":
            assert outcome.verdict is not None
            return Say(
                kind=EventKind.FAILED,
                message=f"{outcome.verdict.summary} ({outcome.reason})",
                rank=outcome.verdict.first_rank,
                step=outcome.verdict.step,
                data={"verdict": outcome.verdict.model_dump(mode="json"), "reason": outcome.reason},
            )
        case "stopped":
            return Say(kind=EventKind.STOPPED, message=f"stopped: {outcome.reason}")
        case "drained":
            return Say(kind=EventKind.STOPPED, message=f"ended in order: {outcome.reason}")
        case "not_placed":
            return Say(kind=EventKind.NOTE, message=f"gives its grant back: {outcome.reason}")
        case "lost":
            return Say(kind=EventKind.NOTE, message=f"gives up: {outcome.reason}")
        case _:
            assert_never(outcome.phase)


def stop_by(request: LaunchRequest, desired: Desired) -> StopAsked | LeaveAsked | None:
    """What the orchestrator's answer asks of this generation; None: go on. Pure."""
    if desired.generation > request.generation:
        return StopAsked(reason=f"generation {desired.generation} has taken over", lost=True)
    if desired.action == "stop":
        return StopAsked(reason=desired.reason or "the orchestrator says stop")
    if desired.action == "drain":
        return LeaveAsked(reason=desired.reason or "the orchestrator says drain")
    return None
