"""What a person asks of a run's checkpoints, and the program that reads one without us."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.checkpointing import catalog, inspect
from workers.checkpointing.load import load
from workers.checkpointing.save import Saver
from workers.contract.manifest import ResumePoint
from workers.contract.rundir import checkpoints_dir
from workers.errors import DamagedCheckpointError

MakeSaver = Callable[..., Saver]
ResumeAt = Callable[[int], ResumePoint]
State = dict[str, torch.Tensor]

EXAMPLE = Path(__file__).parents[3] / "examples" / "read_checkpoint.py"


def _state(seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.w": torch.randn(7, 5, generator=generator),
        "model.half": torch.randn(3, 2, 2, generator=generator).bfloat16(),
        "model.empty": torch.zeros(0, 4),
        "buffer.count": torch.tensor(seed),
        "optimizer.w.exp_avg": torch.randn(7, 5, generator=generator),
    }


@pytest.fixture
def saved(saver: MakeSaver, resume_at: ResumeAt) -> tuple[str, str]:
    """The names of the checkpoints of steps 1 and 2."""
    one = saver()
    return one.save_final(_state(1), {}, resume_at(1)), one.save_final(_state(2), {}, resume_at(2))


def test_every_checkpoint_is_listed_the_newest_first(run_dir: str, saved: tuple[str, str]) -> None:
    newest, oldest = inspect.list_stored(run_dir)
    assert (newest.name, oldest.name) == (saved[1], saved[0])
    assert newest.parent == oldest.name
    assert newest.published_at is not None
    assert newest.total_bytes > 0
    assert newest.problem == ""


def test_one_flipped_byte_in_every_file_in_turn_is_found_named_and_costs_no_older_one(
    run_dir: str, saved: tuple[str, str]
) -> None:
    """B060: by `--verify`, by the load of a rank, and what follows is the next older checkpoint."""
    older, newest = saved
    files = sorted(path for path in (checkpoints_dir(run_dir) / newest).iterdir())
    assert [path.name for path in files] == ["manifest.json", "rank-0.bin"]
    for file in files:
        content = file.read_bytes()
        for position in range(0, len(content), 31):
            altered = bytearray(content)
            altered[position] ^= 0x04
            file.write_bytes(altered)
            found = {row.name: row.problem for row in inspect.verify_all(run_dir)}
            assert file.name in found[newest], position
            assert found[older] == ""
            with pytest.raises(DamagedCheckpointError, match=file.name):
                load(run_dir, newest, _state(0))
            following = catalog.choose(catalog.survey(run_dir), exclude=[newest])
            assert following is not None
            assert str(following.checkpoint) == older
        file.write_bytes(content)
    assert all(row.problem == "" for row in inspect.verify_all(run_dir))


def test_verifying_one_step_reads_that_one_alone(run_dir: str, saved: tuple[str, str]) -> None:
    assert [row.name for row in inspect.verify_all(run_dir, "1")] == [saved[0]]


def _worker(*arguments: str) -> tuple[int, list[Any]]:
    command = [sys.executable, "-P", "-m", "workers.cli", "checkpoints", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_command_pins_verifies_and_names_the_damage(run_dir: str, saved: tuple[str, str]) -> None:
    code, rows = _worker(run_dir, "--verify", "--pin", "1")
    assert code == 0
    assert [(row["step"], row["holders"]) for row in rows] == [(2, []), (1, ["pin"])]
    (file,) = (checkpoints_dir(run_dir) / saved[0]).glob("*.bin")
    file.write_bytes(b"\1" + file.read_bytes()[1:])
    code, rows = _worker(run_dir, "--verify")
    assert code == 0
    assert [row["problem"] for row in rows] == ["", "rank-0.bin, bytes 0 to 140: the digest does not match"]


def test_a_stranger_reads_it_with_torch_alone(run_dir: str, saved: tuple[str, str]) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 45
    assert "workers" not in EXAMPLE.read_text(encoding="utf-8").replace("workers/", "")
    scope: dict[str, Any] = {"__name__": "a stranger"}
    exec(EXAMPLE.read_text(encoding="utf-8"), scope)
    for step in (1, 2):
        read = scope["read"](scope["newest"](Path(run_dir), step))
        assert read.keys() == _state(step).keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in _state(step).items())
    assert scope["newest"](Path(run_dir)).name == saved[1]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), run_dir], capture_output=True, text=True, check=True, cwd="/"
    )
    assert "model.half  bfloat16[3, 2, 2]" in done.stdout.splitlines()
