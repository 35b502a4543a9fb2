"""What a rank leaves in its log when it ends."""

import os
from types import SimpleNamespace

import pytest

from workers import rank
from workers.contract.rank_messages import Failed
from workers.progress import Progress


def end_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Failed:
    def join(order: object) -> None:
        raise error

    said: list[Failed] = []
    monkeypatch.setattr(rank, "join_world", join)
    assert rank.run(SimpleNamespace(), said.append, Progress()) == 1
    return said[0]


def test_an_error_of_its_own_leaves_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end_with(ValueError("marker-7"), monkeypatch)
    log = capsys.readouterr().err
    assert "Traceback" in log
    assert "ValueError: marker-7" in log


def test_the_end_of_a_peer_leaves_one_line_and_the_message_keeps_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = end_with(
        RuntimeError("Connection closed by peer [127.0.0.1]:4\nframe #0\nframe #1"), monkeypatch
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == "shardyard: ended because another rank did (RuntimeError: Connection closed by peer [127.0.0.1]:4)"
    )
    assert "join" in failed.traceback


def test_a_log_on_a_full_disk_does_not_keep_the_error_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    full = SimpleNamespace(write=lambda text: os.write(descriptor, text.encode()), flush=lambda: None)
    monkeypatch.setattr("sys.stderr", full)
    failed = end_with(OSError(28, "No space left on device"), monkeypatch)
    os.close(descriptor)
    assert failed.error_type == "OSError"
