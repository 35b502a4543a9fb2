"""The controller's times, and what it tells drivers."""

from dataclasses import dataclass

from workers.contract.launch import DEFAULT_LEASE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All times in seconds."""

    report_url: str | None
    tick_seconds: float = 1.0
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    placement_seconds: float = 120.0
    stop_grace_seconds: float = (
        30.0  # a driver that was told to stop, or said its last word, may take this long
    )
    missing_grace_seconds: float = (
        5.0  # Ray says that it does not know a job it took: believed after this long
    )
