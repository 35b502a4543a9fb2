"""The user's own task: found, checked, and its exceptions left alone."""

from pathlib import Path

import pytest

from workers.contract.config import TrainingConfig
from workers.data import DataError
from workers.errors import ConfigError
from workers.models import Task, TaskError, load_task, open_dataset

CODE = """
import torch
from torch import nn


class Rows:
    digest = "rows-1"

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def batch(self, ids):
        return {"x": torch.tensor([[float(i)] for i in ids])}


class Regression:
    def __init__(self, *, rows=4):
        self.rows = rows

    def build(self):
        return nn.Linear(1, 1)

    def blocks(self, module):
        return ()

    def loss_sum(self, module, batch):
        return (module(batch["x"]) - 1).square().sum()

    def num_tokens(self, batch):
        return len(batch["x"])

    def dataset(self, cache_dir):
        return Rows(self.rows)


def make_task(rows=4):
    return Regression(rows=rows)


def returns_the_class():
    return Regression


class HalfATask:
    def build(self):
        return nn.Linear(1, 1)


class NoDataset(Regression):
    def dataset(self, cache_dir):
        return [1, 2, 3]


def explodes():
    raise RuntimeError("my own mistake")


def wrong_inside():
    return len(5)


number = 3
"""


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(CODE)
    (package / "broken.py").write_text("import a_module_that_is_not_there\n")
    (package / "raises.py").write_text("raise KeyError('at import')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def load(target: str, **args: object) -> Task:
    model = {"kind": "task", "target": target, "args": args}
    return load_task(TrainingConfig.model_validate({"model": model, "data": {"kind": "task"}}))


@pytest.mark.parametrize("target", ["their_package.tasks:make_task", "their_package.tasks:Regression"])
def test_a_function_or_a_class_makes_the_task_with_its_arguments(target: str, tmp_path: Path) -> None:
    task = load(target, rows=7)
    assert isinstance(task, Task)
    assert len(open_dataset(task, tmp_path)) == 7


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("their_packge.tasks:make_task", r"no module 'their_packge' on this node.*runtime\.working_dir"),
        ("their_package.task:make_task", r"no module 'their_package\.task'"),
        ("their_package.tasks:make_tsk", r"tasks\.py has no 'make_tsk'; did you mean 'make_task'\?"),
        ("their_package.tasks:number", "is of type int, not a callable that returns a task"),
        ("their_package.tasks:HalfATask", "a HalfATask without blocks, loss_sum, num_tokens, dataset"),
        ("their_package.tasks:returns_the_class", "returned the class Regression, not an instance"),
    ],
)
def test_a_target_that_is_no_task_is_refused_by_name(target: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        load(target)


def test_a_wrong_argument_is_the_job_files_mistake(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"model\.args: .*make_task\(rows=4\): .* unexpected keyword argument 'row'"
    ):
        load("their_package.tasks:make_task", row=7)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("their_package.tasks:explodes", RuntimeError),
        ("their_package.tasks:wrong_inside", TypeError),
        ("their_package.broken:make_task", ModuleNotFoundError),
        ("their_package.raises:make_task", KeyError),
    ],
)
def test_what_the_users_code_raises_stays_as_it_is(target: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        load(target)
    assert not isinstance(caught.value, ConfigError)
    assert "their_package" in str(caught.traceback[-1].path)


def test_a_data_set_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="returned a list that lacks one of digest, __len__, batch"):
        open_dataset(load("their_package.tasks:NoDataset"), tmp_path)


def test_a_data_set_without_samples_is_refused(tmp_path: Path) -> None:  # B027
    with pytest.raises(DataError, match="there are 0 samples, at least 1 is needed"):
        open_dataset(load("their_package.tasks:make_task", rows=0), tmp_path)
