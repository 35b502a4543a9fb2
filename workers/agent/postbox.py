"""The agent's two lines to its driver: what it tells, batched, and the order in force, with the driver's lease."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from workers.agent.messages import AgentMessage, Standing
from workers.contract.launch import RoundOrder

FLUSH_SECONDS: Final = 1.0  # samples travel this often; also the agent's heartbeat
LISTENS_PER_LEASE: Final = 5  # each answer renews the lease, so several fit into one
_RETRY_SECONDS: Final = 0.2


class Mailbox(Protocol):
    """How an agent reaches the relay. Both calls raise MailboxGoneError for good, OSError for now."""

    def tell(self, lines: Sequence[str]) -> None:
        """Hand over lines, in order."""
        ...

    def listen(self, seen: int, wait_seconds: float) -> Standing:
        """Wait for an order newer than version `seen`, at most `wait_seconds`."""
        ...


class MailboxGoneError(Exception):
    """The relay is no more: the driver has ended, or this attempt has."""


class Postbox:
    """Two threads around a mailbox. `wake` is called from them whenever there is something to look at."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        lease_seconds: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gone = threading.Event()
        self._mailbox = mailbox
        self._lease_seconds = lease_seconds
        self._wake = wake
        self._clock = clock
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._flush = threading.Event()
        self._closed = threading.Event()
        self._standing = Standing(version=0, order=None, driver_silent_seconds=0.0)
        self._driver_heard_at = clock()
        self._sender = threading.Thread(target=self._send, name="agent-sender", daemon=True)
        self._listener = threading.Thread(target=self._listen, name="agent-listener", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._sender.start()
        self._listener.start()

    def tell(self, message: AgentMessage, *, at_once: bool) -> None:
        """Queue a message; `at_once` sends it now instead of with the next second's batch."""
        with self._lock:
            self._lines.append(message.to_json())
        if at_once:
            self._flush.set()

    @property
    def order(self) -> tuple[int, RoundOrder | None]:
        """The order in force, with its version."""
        return self._standing.version, self._standing.order

    @property
    def lease_ends_at(self) -> float:
        """When, on this clock, the driver will have been silent for a whole lease."""
        return self._driver_heard_at + self._lease_seconds

    def close(self, *, seconds: float = 5.0) -> None:
        """Send what is queued and end the sender; the listener ends with the process."""
        self._closed.set()
        self._flush.set()
        if self._sender.is_alive():
            self._sender.join(timeout=seconds)

    def _send(self) -> None:
        while not self.gone.is_set():
            self._flush.wait(FLUSH_SECONDS)
            self._flush.clear()
            closing = self._closed.is_set()
            with self._lock:
                lines, self._lines = self._lines, []
            self._deliver(lines)
            if closing:
                return

    def _deliver(self, lines: Sequence[str]) -> None:
        while not self.gone.is_set():
            try:
                self._mailbox.tell(lines)
            except MailboxGoneError:
                self._lose()
            except OSError:
                if self._closed.wait(_RETRY_SECONDS):
                    return
                continue
            return

    def _listen(self) -> None:
        while not self._closed.is_set() and not self.gone.is_set():
            try:
                standing = self._mailbox.listen(
                    self._standing.version, self._lease_seconds / LISTENS_PER_LEASE
                )
            except MailboxGoneError:
                self._lose()
                return
            except OSError:
                self._closed.wait(_RETRY_SECONDS)
                continue
            self._driver_heard_at = max(self._driver_heard_at, self._clock() - standing.driver_silent_seconds)
            self._standing = standing
            self._wake()

    def _lose(self) -> None:
        self.gone.set()
        self._wake()
