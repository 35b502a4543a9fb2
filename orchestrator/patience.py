"""Since when a condition holds, on a monotonic clock. Forgotten with the process: then the wait begins anew."""

from collections.abc import Callable, Set


class Patience:
    """For each job, by purpose: the condition that holds now, and since when."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: dict[tuple[str, str], tuple[str, float]] = {}

    def seconds_in(self, job_id: str, purpose: str, condition: str) -> float:
        """Return for how many seconds `condition` has held; 0 where it is new."""
        now = self._monotonic()
        known = self._since.get((job_id, purpose))
        if known is None or known[0] != condition:
            self._since[job_id, purpose] = (condition, now)
            return 0.0
        return now - known[1]

    def seconds_since(self, job_id: str, purpose: str, condition: str) -> float | None:
        """Return for how many seconds `condition` has been on record; None where it is not, and nothing is begun."""
        known = self._since.get((job_id, purpose))
        return None if known is None or known[0] != condition else self._monotonic() - known[1]

    def restart(self, job_id: str, purpose: str, condition: str) -> None:
        """Record that `condition` begins now."""
        self._since[job_id, purpose] = (condition, self._monotonic())

    def keep_only(self, job_ids: Set[str]) -> None:
        """Forget every other job."""
        self._since = {key: value for key, value in self._since.items() if key[0] in job_ids}
