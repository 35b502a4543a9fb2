"""Engines: `ddp` replicates, `fsdp` shards; the loop sees `Engine` and never learns which."""

from workers.engines.build import build_engine
from workers.engines.engine import Engine, Evaluation, StepOutput, WeightedBatch

__all__ = ["Engine", "Evaluation", "StepOutput", "WeightedBatch", "build_engine"]
