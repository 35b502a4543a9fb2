"""Evaluation: the loss over samples that training never sees, the same ones each time, whatever the world size."""

from workers.contract.batch import BatchPlan, MicroBatch
from workers.contract.config import TrainingConfig
from workers.data import Dataset, SampleOrder
from workers.engines import Engine, Evaluation, WeightedBatch
from workers.models import Task
from workers.random_streams import stream_seed
from workers.world import World


def is_evaluation_due(step: int, config: TrainingConfig) -> bool:
    """True if an evaluation follows the 0-based `step`: every so many, and after the last one of the job."""
    finished = step + 1
    return config.validation.ratio > 0 and (
        finished % config.validation.every_steps == 0 or finished == config.train.steps
    )


def evaluate(
    engine: Engine,
    task: Task,
    dataset: Dataset,
    samples: SampleOrder,
    config: TrainingConfig,
    world: World,
    micro: int,
) -> Evaluation:
    """Return the loss over the first `validation.max_sequences` held-out samples, each counted once; collective.

    `micro` sequences go into a forward, as in training. Costs their forward and one small all-reduce.
    """
    num_sequences = min(config.validation.max_sequences, samples.num_validation)
    cuts = cut_held_out(num_sequences, micro=micro, rank=world.rank, world_size=world.world_size)
    return engine.evaluate([_fetch(cut, task, dataset, samples) for cut in cuts])


def cut_held_out(num_sequences: int, *, micro: int, rank: int, world_size: int) -> tuple[MicroBatch, ...]:
    """Cut positions [0, num_sequences) over ranks, equally many micro-batches on each; those without any count 0."""
    per_rank = -(-num_sequences // world_size)
    plan = BatchPlan(
        global_sequences=num_sequences, world_size=world_size, micro=micro, accumulation=-(-per_rank // micro)
    )
    return plan.micro_batches(step=0, rank=rank)


def _fetch(cut: MicroBatch, task: Task, dataset: Dataset, samples: SampleOrder) -> WeightedBatch:
    """Read the held-out samples of one micro-batch; one of no sequences reads the first sample, uncounted."""
    is_counted = cut.count > 0
    positions = range(cut.first, cut.first + cut.count) if is_counted else range(1)
    batch = dataset.batch(samples.validation_ids(positions).tolist())
    return WeightedBatch(
        batch=batch,
        num_tokens=task.num_tokens(batch) if is_counted else 0,
        seed=stream_seed(seed=samples.seed, step=0, first_index=cut.first),
        is_counted=is_counted,
    )
