"""Quantities as a person reads them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import wording


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (11_936_768, "11.4 MiB"),
        (1 << 30, "1.00 GiB"),
        ((1 << 30) - 1, "1.00 GiB"),
        (5 << 50, "5.00 PiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(num_bytes: int, text: str) -> None:
    assert wording.bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.312, "0.31 s"),
        (0.9999, "1.0 s"),
        (8.24, "8.2 s"),
        (9.999, "10 s"),
        (59.7, "1 min 00 s"),
        (80, "1 min 20 s"),
        (7500, "2 h 05 min"),
        (3 * 86_400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_durations_are_as_exact_as_a_reader_needs(seconds: float, text: str) -> None:
    assert wording.seconds_text(seconds) == text


@given(st.floats(max_value=1e7, min_value=-1e7))
def test_no_duration_is_ever_negative(seconds: float) -> None:
    for told in (wording.seconds_text(seconds), wording.age_text(seconds), wording.offset_text(seconds)):
        assert "-" not in told


@given(st.text())
def test_what_a_job_wrote_cannot_steer_the_terminal(text: str) -> None:
    shown = wording.harmless(text + "\x1b[2J\x1b]0;title\x07\x1b]8;;http://planted\x1b\\x\r\x9b31m" + text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(0x7F <= ord(char) <= 0x9F for char in shown)
    assert "http://planted" not in shown or "http://planted" in text


def test_colours_are_dropped_and_the_text_between_them_stays() -> None:
    assert wording.harmless("\x1b[1;31merror\x1b[0m: no\tfile\n") == "error: no\tfile\n"


def test_a_moment_is_told_with_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime(2026, 7, 1, 12, 0, 5, tzinfo=UTC)
    for zone, text in (
        ("UTC", "2026-07-01 12:00:05 UTC"),
        ("America/Halifax", "2026-07-01 09:00:05 UTC-03:00"),
        ("Asia/Kolkata", "2026-07-01 17:30:05 UTC+05:30"),
    ):
        monkeypatch.setenv("TZ", zone)
        __import__("time").tzset()
        assert wording.day_text(moment) == text
    monkeypatch.undo()
    __import__("time").tzset()


def test_numbers_take_the_plural() -> None:
    assert [wording.plural(n, "process", "processes") for n in (0, 1, 2000)] == [
        "0 processes",
        "1 process",
        "2,000 processes",
    ]
