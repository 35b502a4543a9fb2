"""What is read of a run directory, and what never is."""

import os
from pathlib import Path

import pytest

from orchestrator.errors import FileNotServedError
from orchestrator.job_queries import LogName
from orchestrator.run_dir.checkpoints import list_checkpoints
from orchestrator.run_dir.logs import list_logs, read_log
from orchestrator.run_dir.spool import read_samples, read_spool
from workers.contract.manifest import CheckpointId, Manifest, ResumePoint
from workers.contract.rundir import checkpoints_dir, driver_log, events_dir, rank_log, samples_dir

RANK = LogName(generation=1, attempt=0, round=0, rank=1)


def write_log(run_dir: Path, name: LogName = RANK, data: bytes = b"hello\n") -> Path:
    if name.rank is None:
        path = driver_log(str(run_dir), generation=name.generation)
    else:
        assert name.attempt is not None
        assert name.round is not None
        path = rank_log(
            str(run_dir), generation=name.generation, attempt=name.attempt, round_=name.round, rank=name.rank
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def read(run_dir: Path, name: LogName = RANK, *, offset: int = 0, limit: int = 1 << 20):
    return read_log(str(run_dir), name, offset=offset, limit_bytes=limit)


def test_logs_are_listed_by_generation_attempt_round_and_rank_as_numbers(tmp_path: Path) -> None:  # B095
    names = [
        LogName(generation=1),
        LogName(generation=1, attempt=0, round=2, rank=10),
        LogName(generation=1, attempt=0, round=10, rank=2),
        LogName(generation=1, attempt=0, round=10, rank=11),
        LogName(generation=2),
        LogName(generation=10, attempt=0, round=0, rank=0),
    ]
    for name in reversed(names):
        write_log(tmp_path, name)
    (tmp_path / "logs" / "notes.txt").write_text("not a log")
    assert [file.name for file in list_logs(str(tmp_path))] == names


def test_a_job_without_a_run_directory_has_no_logs(tmp_path: Path) -> None:
    assert list_logs(str(tmp_path / "nothing")) == ()
    assert list_checkpoints(str(tmp_path / "nothing")) == ()
    assert read_spool(str(tmp_path / "nothing"), generation=1, after=-1) == ()


def test_a_log_is_read_in_parts_that_add_up(tmp_path: Path) -> None:
    text = "".join(f"line {n}: ü€😀\n" for n in range(50))
    write_log(tmp_path, data=text.encode())
    parts, offset = [], 0
    while (part := read(tmp_path, offset=offset, limit=7)).text:
        parts.append(part.text)
        assert part.offset == offset
        offset = part.next_offset
    assert "".join(parts) == text
    assert offset == part.size_bytes == len(text.encode())


def test_any_bytes_are_shown_and_what_comes_after_them_too(tmp_path: Path) -> None:  # B096
    odd = b"\xff\xfe" + "ü".encode()[:1] + b"\0" + b"x" * 1_000_000 + b"\r50%\r100%\n" + b"after\n"
    write_log(tmp_path, data=odd)
    text, offset = "", 0
    while (part := read(tmp_path, offset=offset, limit=65_536)).text:
        text, offset = text + part.text, part.next_offset
    assert text.endswith("after\n")
    assert offset == len(odd)


def test_a_character_that_is_not_written_yet_waits_for_its_rest(tmp_path: Path) -> None:
    path = write_log(tmp_path, data=b"a" + "€".encode()[:2])
    first = read(tmp_path)
    assert (first.text, first.next_offset) == ("a", 1)
    path.write_bytes("a€".encode())
    assert read(tmp_path, offset=first.next_offset).text == "€"


def test_a_negative_offset_counts_from_the_end_and_begins_with_a_character(tmp_path: Path) -> None:
    write_log(tmp_path, data="ab€cd".encode())
    assert read(tmp_path, offset=-4).text == "cd"
    assert read(tmp_path, offset=-100).text == "ab€cd"
    assert read(tmp_path, offset=100).text == ""


@pytest.mark.parametrize(
    "name",
    [
        LogName(generation=9),
        LogName(generation=1, attempt=0, round=0, rank=9),
        LogName(generation=-1),
        LogName(generation=1, attempt=0, round=-1, rank=0),
    ],
)
def test_a_log_that_is_not_there_is_said_so(tmp_path: Path, name: LogName) -> None:  # B146
    write_log(tmp_path)
    with pytest.raises(FileNotServedError):
        read(tmp_path, name)


def test_no_link_leads_out_of_the_logs(tmp_path: Path) -> None:  # B144, B146
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "rank-1.log").write_text("secret")
    run_dir = tmp_path / "run"
    path = write_log(run_dir)
    path.unlink()
    path.symlink_to(secret / "rank-1.log")
    with pytest.raises(FileNotServedError):
        read(run_dir)
    assert list_logs(str(run_dir)) == ()
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(secret, target_is_directory=True)
    with pytest.raises(FileNotServedError):
        read(run_dir)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileNotServedError):
        read(tmp_path)


def publish(run_dir: Path, one: CheckpointId, directory: str | None = None) -> Path:
    resume = ResumePoint(
        step=one.step, next_index=0, seed=0, tokens_seen=5, data_digest="d", config_digest="c"
    )
    manifest = Manifest(
        checkpoint=one, parent=None, world_size=2, resume=resume, tensors={}, files={"rank-0.bin": 7}
    )
    path = checkpoints_dir(str(run_dir)) / (directory or str(one))
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(manifest.to_json())
    return path


def test_published_checkpoints_are_listed_newest_step_first_whatever_the_clock_says(
    tmp_path: Path,
) -> None:  # B077
    ids = [
        CheckpointId(step=step, generation=1, attempt=0, round=0, nonce="0" * 8)
        for step in (9900, 10_000, 123_456_789)
    ]
    for one in reversed(ids):
        publish(tmp_path, one)
    found = list_checkpoints(str(tmp_path))
    assert [file.step for file in found] == [123_456_789, 10_000, 9900]
    assert (found[0].total_bytes, found[0].tokens_seen, found[0].world_size) == (7, 5, 2)


def test_what_is_not_published_is_not_listed(tmp_path: Path) -> None:  # B060
    one = CheckpointId(step=5, generation=1, attempt=0, round=0, nonce="0" * 8)
    other = one.model_copy(update={"step": 6})
    publish(tmp_path, one, directory=str(other))
    (checkpoints_dir(str(tmp_path)) / str(one)).mkdir()
    torn = publish(tmp_path, one.model_copy(update={"step": 7}))
    (torn / "manifest.json").write_bytes(b'{"format"')
    assert list_checkpoints(str(tmp_path)) == ()


def test_a_spool_is_read_across_segments_and_its_torn_end_left_out(tmp_path: Path, make) -> None:
    root = events_dir(str(tmp_path))
    root.mkdir()
    for first in (0, 2, 4):
        lines = [make.event(n).to_json() + "\n" for n in (first, first + 1)]
        (root / f"g1-{first:09d}.jsonl").write_text("".join(lines))
    (root / "g2-000000000.jsonl").write_text(make.event(9, generation=2).to_json() + "\n")
    with (root / "g1-000000004.jsonl").open("a") as file:
        file.write(make.event(6).to_json()[:40])
    found = read_spool(str(tmp_path), generation=1, after=1)
    assert [event.sequence for event in found] == [2, 3, 4, 5]


def test_of_spooled_samples_those_of_the_loss_that_are_not_known_are_read(tmp_path: Path, make) -> None:
    root = samples_dir(str(tmp_path))
    root.mkdir()
    for first in (0, 10, 20):
        told = [make.sample(step, rank=rank) for step in range(first + 1, first + 11) for rank in (0, 1)]
        (root / f"g1-{first:09d}.jsonl").write_text("".join(one.to_json() + "\n" for one in told))
    (root / "g2-000000000.jsonl").write_text(make.sample(99).to_json() + "\n")
    missed = read_samples(str(tmp_path), generation=1, after=make.sample(14))
    assert [(one.rank, one.step) for one in missed] == [(0, step) for step in range(15, 31)]
    assert len(read_samples(str(tmp_path), generation=2, after=None)) == 1
    assert read_samples(str(tmp_path / "nothing"), generation=1, after=None) == ()
