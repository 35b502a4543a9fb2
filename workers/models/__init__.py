"""Model families behind one protocol, `Task`; the loop asks `load_task` and never learns which family it trains."""

from typing import assert_never

from workers.contract.config import HfModel, LlamaModel, TaskData, TaskModel, TrainingConfig
from workers.models.hf_task import hf_task
from workers.models.llama_task import llama_task
from workers.models.task import Batch, Dataset, Task, TaskError
from workers.models.user_task import open_dataset, user_task

__all__ = ["Batch", "Dataset", "Task", "TaskError", "load_task", "open_dataset"]


def load_task(config: TrainingConfig) -> Task:
    """Return the task that `config.model` names. Builds no module and opens no samples; every rank calls it.

    Raises ConfigError for dimensions that make no model, TaskError for a target that is no task; what the user's own
    code raises is passed on as it is.
    """
    match config.model:
        case TaskModel():
            return user_task(config.model)
        case LlamaModel():
            assert not isinstance(config.data, TaskData), (
                "the contract lets a task's data come with a task only"
            )
            return llama_task(config.model, config.data, seed=config.train.seed)
        case HfModel():
            assert not isinstance(config.data, TaskData), "see above"
            return hf_task(config.model, config.data, seed=config.train.seed)
        case _:
            assert_never(config.model)
