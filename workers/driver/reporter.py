"""Tells the run directory and the orchestrator what happens, and hears the desired state. One thread."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

import httpx
from pydantic import ValidationError

from workers.contract.events import Event, JobResult, Sample
from workers.contract.failure import Verdict
from workers.contract.launch import LaunchRequest
from workers.contract.report import Desired, Phase, Report
from workers.contract.restart import Counters
from workers.driver.effects import Forward, Say
from workers.driver.journal import Journal
from workers.driver.outbox import Outbox

REPORT_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0
_BACKOFF_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Whoever watches on the spot (`shardyard-worker local`)."""

    def event(self, event: Event) -> None:
        """An event happened."""
        ...

    def sample(self, sample: Sample) -> None:
        """A sample came in."""
        ...


class Reporter:
    """Keeps what is told until the orchestrator has it; never holds up who tells.

    `obey` is called, from the reporter's thread, with every answer.
    """

    def __init__(
        self,
        request: LaunchRequest,
        *,
        token: str,
        obey: Callable[[Desired], None],
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answered_at = clock()
        self._request = request
        self._token = token
        self._obey = obey
        self._listener = listener
        self._clock = clock
        self._journal = Journal(request)
        self._lock = threading.Lock()
        self._outbox = Outbox()
        self._sequence = 0
        self._status = Report(
            job_id=request.job_id,
            generation=request.generation,
            phase="starting",
            step=request.counters.furthest_step,
            world_size=request.world_size,
            counters=request.counters,
        )
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._final_is_delivered = threading.Event()
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        if request.report_url is not None:
            self._thread.start()

    def say(self, said: Say) -> Event:
        """Add an event to the timeline: on disk now, with the orchestrator soon."""
        event = Event(
            kind=said.kind,
            generation=self._request.generation,
            sequence=self._sequence,
            at=datetime.now(UTC),
            message=said.message,
            attempt=said.attempt,
            round=said.round,
            rank=said.rank,
            step=said.step,
            data=said.data,
        )
        self._sequence += 1
        log.info("%s: %s", event.kind.value, event.message)
        self._keep(lambda: self._journal.event(event))
        with self._lock:
            self._outbox = self._outbox.with_event(event)
        if self._listener is not None:
            self._listener.event(event)
        self._hurry.set()
        return event

    def forward(self, forward: Forward) -> None:
        """Pass a sample on."""
        self._keep(lambda: self._journal.sample(forward.sample))
        with self._lock:
            self._outbox = self._outbox.with_sample(forward.sample)
        if self._listener is not None:
            self._listener.sample(forward.sample)

    def status(
        self,
        *,
        phase: Phase,
        step: int,
        counters: Counters,
        verdict: Verdict | None = None,
        result: JobResult | None = None,
    ) -> None:
        """Say where the generation stands. A change of phase travels at once."""
        update = {"phase": phase, "step": step, "counters": counters, "verdict": verdict, "result": result}
        with self._lock:
            hurry = self._status.phase != phase
            self._status = self._status.model_copy(update=update)
        if hurry:
            self._hurry.set()

    def close(self, *, seconds: float) -> bool:
        """Deliver the last word, for at most `seconds`; False if the orchestrator never took it."""
        self._closing.set()
        self._hurry.set()
        delivered = self._request.report_url is None or self._final_is_delivered.wait(seconds)
        self._journal.close()
        return delivered

    def _keep(self, write: Callable[[], None]) -> None:
        """Storage that refuses must not end training: the orchestrator has the event too."""
        try:
            write()
        except OSError as error:
            log.warning("cannot write to the run directory: %s", error)

    def _run(self) -> None:
        with httpx.Client(
            timeout=_TIMEOUT_SECONDS, headers={"Authorization": f"Bearer {self._token}"}
        ) as client:
            while True:
                self._hurry.wait(REPORT_SECONDS)
                self._hurry.clear()
                closing = self._closing.is_set()  # before the report is made: it then holds the last word
                with self._lock:
                    batch, status = self._outbox.batch(), self._status
                report = status.model_copy(update={"events": batch.events, "samples": batch.samples})
                answer = self._post(client, report)
                if answer is None:
                    self._closing.wait(_BACKOFF_SECONDS) if not closing else time.sleep(_BACKOFF_SECONDS)
                    continue
                with self._lock:
                    self._outbox = self._outbox.acknowledged(upto=answer.acknowledged, sent=batch.samples)
                    left, is_long = self._outbox, self._outbox.is_long
                if is_long or left.events:
                    self._hurry.set()
                elif closing:
                    self._final_is_delivered.set()
                    return
                self._obey(answer)

    def _post(self, client: httpx.Client, report: Report) -> Desired | None:
        url = f"{self._request.report_url}/api/v1/jobs/{self._request.job_id}/report"
        try:
            response = client.post(
                url, content=report.to_json(), headers={"Content-Type": "application/json"}
            )
            response.raise_for_status()
            answer = Desired.from_json(response.content)
        except (httpx.HTTPError, ValidationError) as error:
            if not self._complained:
                log.warning("the orchestrator does not take reports, they are kept: %s", error)
            self._complained = True
            return None
        if self._complained:
            log.warning("the orchestrator takes reports again")
        self._complained = False
        self.answered_at = self._clock()
        return answer


def logging_to(path: str) -> None:
    """Send this process' log lines to its file in the run directory, beside standard error."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    with suppress(OSError):
        handlers.append(logging.FileHandler(path))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=handlers, force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every report says nothing
