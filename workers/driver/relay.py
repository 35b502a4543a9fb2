"""The mailbox between a driver and its agents, one per attempt, kept in a Ray actor beside the driver.

It reads nothing and decides nothing. Orders are level-triggered: whoever asks gets the one in force. What agents
send is queued until the driver takes it.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence


class Mailbox:
    """An async actor: every method may wait without holding up the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: list[str] = []
        self._order: str | None = None
        self._version = 0
        self._heard_driver = clock()
        self._heard_agents: dict[int, float] = {}
        self._arrived = asyncio.Event()
        self._ordered = asyncio.Event()

    async def tell(self, rank: int, lines: Sequence[str]) -> None:
        """Agent: hand over lines, in order; none at all is a sign of life."""
        self._heard_agents[rank] = self._clock()
        if lines:
            self._lines.extend(lines)
            self._arrived.set()

    async def listen(self, rank: int, seen: int, wait_seconds: float) -> tuple[int, str | None, float]:
        """Agent: wait until an order newer than version `seen` is in force, at most `wait_seconds`.

        Returns the version, the order as JSON and the driver's silence in seconds.
        """
        self._heard_agents[rank] = self._clock()
        if self._version <= seen:
            await _wait(self._ordered, wait_seconds)
        self._heard_agents[rank] = self._clock()
        return self._version, self._order, self._clock() - self._heard_driver

    async def post(self, order: str) -> None:
        """Driver: put an order in force and wake the agents that wait for one."""
        self._heard_driver = self._clock()
        self._order = order
        self._version += 1
        self._ordered.set()
        self._ordered = asyncio.Event()

    async def take(self, wait_seconds: float) -> tuple[list[str], dict[int, float]]:
        """Driver: take the lines that wait, or wait for some; also its heartbeat.

        Returns the lines and, per rank, how many seconds ago its agent was heard.
        """
        self._heard_driver = self._clock()
        if not self._lines:
            self._arrived.clear()
            await _wait(self._arrived, wait_seconds)
        lines, self._lines = self._lines, []
        now = self._clock()
        return lines, {rank: now - heard for rank, heard in self._heard_agents.items()}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
