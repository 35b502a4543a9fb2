"""A task whose data set writes down which ids each rank reads, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from small_tasks import Net, NetTask, Rows


class RecordedRows(Rows):
    """`num_rows` rows; each reading is a line of the rank's file in `directory`."""

    def __init__(self, directory: Path, num_rows: int) -> None:
        super().__init__()
        self._file = directory / f"rank-{dist.get_rank()}"
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def batch(self, ids: Sequence[int]) -> Mapping[str, torch.Tensor]:
        with self._file.open("a") as file:
            file.write(" ".join(map(str, ids)) + "\n")
        return super().batch(ids)


@dataclass
class DifferentDataTask(NetTask):
    """Every rank has rows of its own, as nodes do whose copies of a data set differ."""

    def dataset(self, cache_dir: Path) -> Rows:
        return Rows(f"rows of rank {dist.get_rank()}")


def make_different_data_task(net: str) -> DifferentDataTask:
    """Make the task: what a job file's `model.target` names."""
    assert net == "plain", net
    return DifferentDataTask(Net)


@dataclass
class RecordedTask(NetTask):
    """A plain net on recorded rows."""

    directory: Path = Path()
    num_rows: int = 0

    def dataset(self, cache_dir: Path) -> Rows:
        self.directory.mkdir(parents=True, exist_ok=True)
        return RecordedRows(self.directory, self.num_rows)


def make_recorded_task(directory: str, num_rows: int) -> RecordedTask:
    """Make the task: what a job file's `model.target` names."""
    return RecordedTask(Net, directory=Path(directory), num_rows=num_rows)


def readings(directory: Path) -> list[list[list[int]]]:
    """What each rank read, by rank: one list of ids a micro-batch."""
    files = sorted(directory.iterdir())
    return [
        [[int(word) for word in line.split()] for line in file.read_text().splitlines()] for file in files
    ]
