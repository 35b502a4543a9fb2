"""The training loop: read this first.

A run is a row of optimizer steps. Step s trains the global indices [s * G, (s + 1) * G), whatever the world size; data
order, learning rate and random streams are functions of seed and step. So where a run stands is one integer, and a
round that resumes from a checkpoint does exactly what an uninterrupted one would have done.
"""

import time
from collections.abc import Callable

from workers.checkpointing.load import load
from workers.checkpointing.save import Author, Saver
from workers.contract.batch import MicroBatch, plan_batch
from workers.contract.config import TrainingConfig
from workers.contract.events import JobResult
from workers.contract.launch import RankOrder
from workers.contract.manifest import ResumePoint
from workers.contract.rank_messages import Measured, RankMessage, Ready
from workers.contract.rundir import cache_dir
from workers.data import Dataset
from workers.data.order import sample_ids
from workers.engines import Engine, StepOutput, WeightedBatch, build_engine
from workers.errors import NonFiniteError
from workers.lineage import Lineage, beginning, check_continuation
from workers.models import Task, load_task, open_dataset
from workers.progress import Progress
from workers.random_streams import seed_streams, stream_seed
from workers.sampling import Sampler, StepTimes
from workers.schedule import learning_rate
from workers.world import World


def train(
    order: RankOrder,
    world: World,
    emit: Callable[[RankMessage], None],
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JobResult:
    """Train one round, from where its order says to the last step of the job. Every rank calls it.

    Tells `Ready`, samples and checkpoints through `emit`; whoever called sends the result as `Done`. `progress` says at
    any time where this rank is. Raises ConfigError, DamagedCheckpointError, NonFiniteError, StorageError, and whatever
    the user's own code raises.
    """
    progress = progress or Progress()
    request, config, started = order.request, order.request.config, clock()
    steps, batch, checkpoint = config.train.steps, config.train.batch, config.checkpoint

    # What is trained, on which samples, and how a global batch is cut over ranks and micro-batches.
    task = load_task(config)
    dataset = open_dataset(task, cache_dir(request.run_dir))
    plan = plan_batch(global_sequences=batch.global_sequences, world_size=world.world_size, micro=batch.micro)
    engine = build_engine(config, task, world)
    built = clock()

    # From where: the beginning, or the checkpoint that the driver chose for all ranks.
    progress.phase = "restore"
    start = beginning(config, data_digest=dataset.digest)
    point = restore(order, engine, start) if order.round.resume_from else start
    lineage = Lineage(point)
    sampler = Sampler(order, start_step=point.step, clock=clock)
    saver = Saver(
        run_dir=request.run_dir,
        author=Author.of(order),
        world=world,
        keep=checkpoint.keep,
        emit=emit,
        parent=order.round.resume_from,
        mode=checkpoint.mode,
    )
    seconds = {"build": built - started, "restore": clock() - built}
    emit(Ready(step=point.step, resumed_from=order.round.resume_from, seconds=seconds))

    for step in range(point.step, steps):
        progress.phase, progress.step = "step", step
        step_started = clock()
        cuts = plan.micro_batches(step=step, rank=world.rank)
        micro_batches = [fetch(micro, step, task, dataset, config) for micro in cuts]
        fetched = clock()

        rate = learning_rate(step, config.train)
        output = engine.train_step(micro_batches, learning_rate=rate)
        if not output.is_finite:
            saver.wait()  # what was saved before is good
            raise NonFiniteError(_not_finite(step, output))
        spans = [(micro.first, micro.first + micro.count) for micro in cuts]
        lineage.add_step(spans, output, global_sequences=batch.global_sequences)
        stepped = clock()

        stall = 0.0
        if (step + 1) % checkpoint.every_steps == 0 and step + 1 < steps:
            progress.phase = "save"
            stall = saver.save(engine.state(), engine.aliases(), lineage.gather(world))
        saver.poll()

        sampler.add(output, StepTimes(whole=stepped - step_started, data=fetched - step_started, stall=stall))
        if sampler.is_due:
            emit(Measured(sample=sampler.take(output, learning_rate=rate, memory_bytes=engine.memory())))

    # The last step is published before anybody says that the job is done.
    progress.phase = "finish"
    final = saver.save_final(engine.state(), engine.aliases(), lineage.gather(world))
    return lineage.result(config, checkpoint=final, seconds=clock() - started)


def restore(order: RankOrder, engine: Engine, start: ResumePoint) -> ResumePoint:
    """Load the order's checkpoint into the engine, in place, and return the point to go on from; on every rank."""
    name, request = order.round.resume_from, order.request
    assert name is not None
    point = load(request.run_dir, name, engine.state()).resume
    batch = request.config.train.batch
    check_continuation(point, start=start, global_sequences=batch.global_sequences)
    engine.after_load()
    return point


def fetch(
    micro: MicroBatch, step: int, task: Task, dataset: Dataset, config: TrainingConfig
) -> WeightedBatch:
    """Read the samples of one micro-batch. One of no sequences reads a sample all the same, to keep step, uncounted."""
    indices = range(micro.first, micro.first + max(micro.count, 1))
    ids = sample_ids(indices, num_samples=len(dataset), seed=config.train.seed)
    seed = stream_seed(seed=config.train.seed, step=step, first_index=micro.first)
    seed_streams(seed)  # a data set that draws random numbers repeats them, too
    batch = dataset.batch(ids.tolist())
    counted = micro.count > 0
    return WeightedBatch(
        batch=batch, num_tokens=task.num_tokens(batch) if counted else 0, seed=seed, is_counted=counted
    )


def _not_finite(step: int, output: StepOutput) -> str:
    return (
        f"loss {output.loss}, gradient norm {output.grad_norm} in step {step}: not finite; "
        "the step was not taken, weights are those of the step before"
    )
