"""Finds the user's own `Task`: tells a wrong `target` (TaskError) from an exception of the user's code (passed on)."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from workers.contract.config import TaskModel
from workers.data.dataset import DataError, Dataset
from workers.models.task import Task, TaskError

_METHODS = ("build", "blocks", "loss_sum", "num_tokens", "dataset")


def user_task(model: TaskModel) -> Task:
    """Import `model.target`, call it with `model.args` and check the result against `Task`.

    Raises TaskError when the name leads nowhere or to something else than a task. Whatever the user's module raises
    while it is imported or called passes through unchanged.
    """
    module_name, attribute = model.target.split(":")
    factory = _attribute(_import(module_name, model.target), attribute, model.target)
    _check_arguments(factory, model)
    task = factory(**model.args)
    missing = [name for name in _METHODS if not callable(getattr(task, name, None))]
    if missing or inspect.isclass(task):
        what = f"the class {task.__name__}" if inspect.isclass(task) else f"a {type(task).__name__}"
        lacks = f" without {', '.join(missing)}" if missing else ", not an instance"
        raise TaskError(f"model.target: {model.target} returned {what}{lacks}; see workers.models.task.Task")
    assert isinstance(task, Task)
    return task


def open_dataset(task: Task, cache_dir: Path) -> Dataset:
    """Call `task.dataset` and check the result against `Dataset`. Raises TaskError, and DataError for 0 samples."""
    dataset = task.dataset(cache_dir)
    if not isinstance(dataset, Dataset):
        raise TaskError(
            f"the task's dataset() returned a {type(dataset).__name__} that lacks one of "
            "digest, __len__, batch; see workers.data.dataset.Dataset"
        )
    if len(dataset) < 1:
        raise DataError("data: there are 0 samples, at least 1 is needed")
    return dataset


def _import(module_name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only if it is the target itself that is missing: a module that *it* imports in vain is the user's affair.
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise TaskError(
                f"model.target: {target}: no module {error.name!r} on this node; "
                "install its package in the image or name its folder in runtime.working_dir"
            ) from error
        raise


def _attribute(module: ModuleType, attribute: str, target: str) -> Callable[..., Any]:
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TaskError(f"model.target: {target}: {module.__file__} has no {attribute!r}{hint}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise TaskError(
            f"model.target: {target} is of type {type(factory).__name__}, not a callable that returns a task"
        )
    return factory  # type: ignore[no-any-return]


def _check_arguments(factory: Callable[..., Any], model: TaskModel) -> None:
    """Compare `model.args` with the signature, so that a wrong key is not mistaken for a TypeError of the user's code."""
    arguments: Mapping[str, Any] = model.args
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have none
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise TaskError(f"model.args: {model.target}{signature}: {error}") from error
