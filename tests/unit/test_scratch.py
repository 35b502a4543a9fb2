"""A rank's files go with the rank, however it ended, and nobody else's do."""

import subprocess
import sys
from pathlib import Path

from workers.scratch import claim, sweep

CLAIM_AND_WAIT = (
    "import sys; from pathlib import Path; from workers.scratch import claim; "
    "print(claim(Path(sys.argv[1])), flush=True); sys.stdin.read()"
)


def claimed_by_another(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM_AND_WAIT, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    killed, directory = claimed_by_another(tmp_path)
    (directory / "state.swp").write_bytes(b"state")
    assert sweep(tmp_path) == []
    assert mine.is_dir()
    assert directory.is_dir()
    killed.kill()
    killed.communicate()
    assert sweep(tmp_path) == [directory]
    assert mine.is_dir()
    assert not directory.exists()


def test_whoever_comes_next_sweeps_first(tmp_path: Path) -> None:
    killed, directory = claimed_by_another(tmp_path)
    killed.kill()
    killed.communicate()
    assert claim(tmp_path).is_dir()
    assert not directory.exists()


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shardyard-data").mkdir()
    (tmp_path / "precious").mkdir()
    assert sweep(tmp_path) == []
    assert sweep(tmp_path / "missing") == []
    assert {path.name for path in tmp_path.iterdir()} == {"shardyard-data", "precious"}
