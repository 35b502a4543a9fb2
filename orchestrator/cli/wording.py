"""How quantities are written for a person: bytes, durations, counts, losses. Pure text, no colour, no clock."""

import math
import re
from datetime import datetime
from typing import Final

_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)?")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400


def bytes_text(num_bytes: int) -> str:
    """Three significant digits and a binary unit: `0 B`, `11.4 MiB`, `1.00 GiB`."""
    value = float(num_bytes)
    for unit in _BINARY_UNITS:
        if abs(value) < 999.5 or unit == _BINARY_UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{num_bytes} B"
    return f"{_three_digits(value)} {unit}"


def seconds_text(seconds: float) -> str:
    """A duration at the precision a reader uses: `0.31 s`, `8.2 s`, `1 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds <= 0:
        return "0.00 s"  # two clocks that disagree; a negative duration tells nobody anything
    if seconds < 9.995:
        return f"{seconds:.2f} s" if seconds < 0.9995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def age_text(seconds: float) -> str:
    """One unit, for a column: `12 s`, `3 min`, `2 h`, `5 d`."""
    whole = max(0, int(seconds))
    for limit, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if whole >= limit:
            return f"{whole // limit} {unit}"
    return f"{whole} s"


def offset_text(seconds: float) -> str:
    """Time since the beginning, for a timeline: `0.3 s`, `71.0 s`, then `12:03` minutes, `3:12:03` hours."""
    seconds = max(0.0, seconds)
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE}:{whole % MINUTE:02d}"
    return f"{whole // HOUR}:{whole % HOUR // MINUTE:02d}:{whole % MINUTE:02d}"


def count_text(number: int) -> str:
    """An integer with its thousands apart: `614,400`."""
    return f"{number:,}"


def rate_text(per_second: float) -> str:
    """Tokens in a second, no more digits than are known: `8,120`, `14.2`."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def loss_text(loss: float | None) -> str:
    """Four decimals; a loss that nobody has measured is a dash, one that is not finite says so."""
    if loss is None:
        return "-"
    return f"{loss:.4f}" if math.isfinite(loss) else str(loss)


def plural(number: int, noun: str, many: str = "") -> str:
    """`1 worker`, `2 workers`; `many` where an s is not enough."""
    return f"{count_text(number)} {noun if number == 1 else many or noun + 's'}"


def harmless(text: str) -> str:
    """Text that a job wrote, without what a terminal would obey: escape sequences go, other controls are shown as `·`."""
    return _CONTROLS.sub("·", _ESCAPES.sub("", text))


def without(known: str, text: str) -> str:
    """Leave out what the reader has just read, where `text` begins with it; the whole text where nothing is left."""
    if not known or not text.startswith(known):
        return text
    return text.removeprefix(known).strip(" ;()") or text


def day_text(moment: datetime) -> str:
    """Date and time of the reader's own zone, the zone written out: `2026-12-01 14:03:22 UTC+01:00`."""
    local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S} UTC{_zone(local)}"


def clock_text(moment: datetime) -> str:
    """Time of day in the reader's own zone: `14:03:22`."""
    return f"{moment.astimezone():%H:%M:%S}"


def _zone(local: datetime) -> str:
    text = f"{local:%z}"
    return "" if text in ("", "+0000") else f"{text[:3]}:{text[3:5]}"


def _three_digits(value: float) -> str:
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
