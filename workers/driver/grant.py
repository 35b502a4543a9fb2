"""Whether this generation may still run: the orchestrator's word, or Ray's control store answering."""

import logging
import threading
import time
from collections.abc import Callable

import ray

from workers.driver.effects import Input, StopAsked

log = logging.getLogger(__name__)


class GrantWatch:
    """Gives the grant up when neither the orchestrator nor Ray's control store was heard for a lease."""

    def __init__(
        self,
        *,
        lease_seconds: float,
        orchestrator_heard_at: Callable[[], float],
        put: Callable[[Input], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease_seconds = lease_seconds
        self._orchestrator_heard_at = orchestrator_heard_at
        self._put = put
        self._clock = clock
        self._ray_heard_at = clock()
        for target in (self._ask_ray, self._watch):
            threading.Thread(target=target, name="grant-watch", daemon=True).start()

    def _ask_ray(self) -> None:
        """Blocks for as long as Ray does; that is why somebody else watches."""
        while True:
            try:
                ray.nodes()
                self._ray_heard_at = self._clock()
            except Exception as error:  # noqa: BLE001 -- any failure means the same: not heard
                log.warning("Ray does not answer: %s", error)
            time.sleep(self._lease_seconds / 5)

    def _watch(self) -> None:
        while True:
            heard_at = max(self._ray_heard_at, self._orchestrator_heard_at())
            if self._clock() - heard_at > self._lease_seconds:
                reason = f"neither the orchestrator nor Ray was heard for {self._lease_seconds:g} s"
                self._put(StopAsked(reason=reason, lost=True))
                return
            time.sleep(self._lease_seconds / 10)
