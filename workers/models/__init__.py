"""Model families behind one protocol, `Task`; the loop asks `load_task` and never learns which family it trains."""

from workers.contract.config import TrainingConfig
from workers.models.task import Batch, Dataset, Task, TaskError

__all__ = ["Batch", "Dataset", "Task", "TaskError", "load_task"]


def load_task(config: TrainingConfig) -> Task:
    """Return the task that `config.model` names. Raises TaskError; what the user's own code raises is passed on as it is."""
    raise NotImplementedError
