"""Engines: `ddp` replicates, `fsdp` shards; the loop sees `Engine` and never learns which."""

from workers.contract.config import TrainingConfig
from workers.engines.engine import Engine, StepOutput, WeightedBatch
from workers.models.task import Task
from workers.world import World

__all__ = ["Engine", "StepOutput", "WeightedBatch", "build_engine"]


def build_engine(config: TrainingConfig, task: Task, world: World) -> Engine:
    """Build the module from the seed and lay it out as `config.engine` says; collective. Raises ConfigError."""
    raise NotImplementedError
