"""A plan: what a job will need of each rank, row by row, and which row to take. Bytes are of one rank."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from workers.contract.base import Message

# Memory of a device in bytes, as its maker sells it (data sheets); what a driver keeps for itself is not taken off.
DEVICES: Final[Mapping[str, int]] = {
    "t4": 16 << 30,
    "l4": 24 << 30,
    "a10g": 24 << 30,
    "rtx4090": 24 << 30,
    "v100": 32 << 30,
    "a100-40": 40 << 30,
    "l40s": 48 << 30,
    "a100": 80 << 30,
    "h100": 80 << 30,
    "h200": 141_000_000_000,
    "b200": 180_000_000_000,
    "mi300x": 192_000_000_000,
}
_UNITS: Final = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
HEADROOM: Final = 0.9  # of a device: the rest is the context, fragmentation and what no formula knows


class PlanRow(Message):
    """One engine x stage x offload x activation checkpointing."""

    name: str
    engine: Mapping[str, object]  # the section `engine` of a job file that asks for it
    parameters: int
    gradients: int
    optimizer_state: int
    buffers: int
    activations: int  # at the peak of one micro-batch
    communication: int  # gathered weights, and buckets on their way
    host: int  # offloaded state, and the copy that a save is written from
    nvme: int
    all_gather: int  # bytes that a rank sends in a step
    reduce_scatter: int
    all_reduce: int
    is_asked: bool = False  # what the job file says
    is_recommended: bool = False

    @property
    def peak(self) -> int:
        """All that is on the device at once, at most."""
        static = self.parameters + self.gradients + self.optimizer_state + self.buffers
        return static + self.activations + self.communication

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in a step."""
        return self.all_gather + self.reduce_scatter + self.all_reduce

    def fits(self, device_bytes: int | None) -> bool | None:
        """Whether the peak leaves some headroom; None where the device is not known."""
        return None if device_bytes is None else self.peak <= device_bytes * HEADROOM


class Plan(Message):
    """The master comparison matrix."""

    name: str
    parameters: int  # elements
    trained: int
    workers: int
    micro: int
    accumulation: int
    seq_len: int | None
    precision: str
    device: str | None
    device_bytes: int | None
    rows: Sequence[PlanRow]
    largest_micro: int | None = None  # that fits in the row that was asked for
    reason: str = ""  # why that row is recommended
    advice: str = ""  # the cheapest change that makes the asked row fit
    sources: Mapping[str, Literal["formula", "trace"]] = {}


def device_bytes(text: str) -> int:
    """Read `h200`, `80GiB`, `24 GB`. Raises ValueError, with the names that are known."""
    name = text.strip().lower()
    if name in DEVICES:
        return DEVICES[name]
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B)\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is neither a device ({', '.join(DEVICES)}) nor a size as in 80GiB")
    return round(float(found[1]) * _UNITS[found[2].upper()])
