"""The training loop: read this first.

A run is a row of optimizer steps. Step s trains the global indices [s * G, (s + 1) * G), whatever the world size; data
order, learning rate and random streams are functions of seed and step. So where a run stands is one integer, and a
round that resumes from a checkpoint does exactly what an uninterrupted one would have done.
"""

import time
from collections.abc import Callable
from dataclasses import asdict

from workers.checkpointing.load import load
from workers.checkpointing.save import Author, Saver
from workers.checkpointing.storage import open_storage
from workers.contract.batch import MicroBatch, plan_batch
from workers.contract.config import TrainingConfig
from workers.contract.events import EventKind, JobResult
from workers.contract.launch import RankOrder
from workers.contract.manifest import ResumePoint
from workers.contract.rank_messages import Left, Measured, RankMessage, Ready, Told
from workers.contract.rundir import TOKENIZER, cache_dir
from workers.data import Dataset, SampleOrder, order_of, take_inventory, tokenizer_json
from workers.engines import Engine, StepOutput, WeightedBatch, build_engine
from workers.errors import NonFiniteError
from workers.evaluation import evaluate, is_evaluation_due
from workers.lineage import Lineage, beginning, check_continuation, check_same_data, fork
from workers.models import Task, load_task, open_dataset
from workers.progress import Progress
from workers.random_streams import seed_streams, stream_seed
from workers.sampling import Sampler
from workers.schedule import learning_rate
from workers.world import World


def train(
    order: RankOrder,
    world: World,
    emit: Callable[[RankMessage], None],
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JobResult | Left:
    """Train one round, from where its order says to the last step of the job. Every rank calls it.

    Tells `Ready`, samples and checkpoints through `emit`; whoever called sends the result as `Done`. `progress` says at
    any time where this rank is, and when all of them have agreed to leave: then what is trained is published. Raises ConfigError, DamagedCheckpointError, NonFiniteError, StorageError, and whatever
    the user's own code raises.
    """
    config, progress, started = order.request.config, progress or Progress(), clock()

    # What is trained, on which samples, and how a global batch is cut over ranks and micro-batches.
    task = load_task(config)
    dataset = open_dataset(task, cache_dir(order.request.run_dir))
    samples = order_of(dataset, seed=config.train.seed, validation_ratio=config.validation.ratio)
    engine = build_engine(config, task, world, will_load=order.round.resume_from is not None)
    batch = config.train.batch
    plan = plan_batch(global_sequences=batch.global_sequences, world_size=world.world_size, micro=batch.micro)
    built = clock()

    # From where: the beginning, or the checkpoint that the driver chose for all ranks.
    progress.phase = "restore"
    claim = samples.claim(dataset.digest)
    check_same_data(claim, world)
    start = restore(order, engine, claim)
    lineage = Lineage(start, global_sequences=batch.global_sequences)
    saver = open_saver(order, world, emit)
    sampler = Sampler(order, start_step=start.step, first_step=start.first_step, clock=clock)
    seconds = {"build": built - started, "restore": clock() - built}
    emit(Ready(step=start.step, resumed_from=order.round.resume_from, seconds=seconds))
    is_new_here = order.round.resume_from is None or order.round.resume_run is not None
    if is_new_here and world.rank == 0:
        keep_tokenizer(dataset, order.request.storage)
        tell_data(dataset, samples, emit)

    for step in range(start.step, config.train.steps):
        if not progress.may_begin(step):
            break
        progress.phase, progress.step = "step", step + 1
        sampler.begin_step()
        cuts = plan.micro_batches(step=step - start.first_step, rank=world.rank)
        micro_batches = [fetch(cut, step, task, dataset, samples) for cut in cuts]
        sampler.data_are_here()

        output = engine.train_step(micro_batches, learning_rate=learning_rate(step, config.train))
        if not output.is_finite:
            saver.wait()  # what was saved before is good, and stays
            raise NonFiniteError(_not_finite(step, output))
        lineage.add_step(cuts, output)
        sampler.end_step(output)

        if is_evaluation_due(step, config):
            progress.phase = "evaluate"
            lineage.add_evaluation(evaluate(engine, task, dataset, samples, config, world, plan.micro))
            tell_evaluation(lineage, world, emit)
        if is_save_due(step, config):
            progress.phase = "save"
            sampler.add_stall(saver.save(engine.state(), engine.aliases(), lineage.gather(world)))
        saver.poll()
        if sampler.is_due:
            emit(Measured(sample=sampler.take(engine.memory(), lineage.validation_loss)))

    # Either all ranks have agreed to leave here, or this was the last step: it is published before anybody says so.
    progress.phase = "finish"
    if lineage.step == start.step < config.train.steps:
        return Left(step=start.step, checkpoint=order.round.resume_from)
    final = saver.save_final(engine.state(), engine.aliases(), lineage.gather(world))
    if lineage.step < config.train.steps:
        return Left(step=lineage.step, checkpoint=final)
    speed = sampler.tokens_per_second
    return lineage.result(config, checkpoint=final, seconds=clock() - started, tokens_per_second=speed)


def restore(order: RankOrder, engine: Engine, data_claim: str) -> ResumePoint:
    """Return the point to go on from, with the engine's state as it was there. Every rank calls it.

    Loads the order's checkpoint in place. One of another job makes this one a fork. Raises ConfigError where it was
    saved by other training than this one.
    """
    config, name = order.request.config, order.round.resume_from
    start = beginning(config, data_digest=data_claim)
    if name is None:
        return start
    where = order.round.resume_run
    point = load(where or order.request.storage, name, engine.state()).resume
    engine.after_load()
    if where is not None:
        return fork(point, start=start, global_sequences=config.train.batch.global_sequences)
    check_continuation(point, start=start, global_sequences=config.train.batch.global_sequences)
    return point


def open_saver(order: RankOrder, world: World, emit: Callable[[RankMessage], None]) -> Saver:
    """Return the saver of this round; its lineage goes on from the order's checkpoint."""
    checkpoint = order.request.config.checkpoint
    return Saver(
        run_dir=order.request.storage,
        author=Author.of(order),
        world=world,
        keep=checkpoint.keep,
        keep_best=checkpoint.keep_best,
        emit=emit,
        parent=order.round.resume_from,
        parent_run=order.round.resume_run,
        mode=checkpoint.mode,
    )


def keep_tokenizer(dataset: Dataset, where: str) -> None:
    """Put the tokenizer that made the tokens, where there is one, on the run's storage. Rank 0 calls it."""
    text = tokenizer_json(dataset)
    if text is not None:
        storage = open_storage(where)
        storage.make_directory(".")
        storage.publish(TOKENIZER, text.encode())


def tell_data(dataset: Dataset, samples: SampleOrder, emit: Callable[[RankMessage], None]) -> None:
    """Put into the timeline what was found, and what of it is in no sample."""
    found = take_inventory(dataset, samples)
    emit(Told(kind=EventKind.DATA_OPENED, message=str(found), data=asdict(found)))


def tell_evaluation(lineage: Lineage, world: World, emit: Callable[[RankMessage], None]) -> None:
    """Put the newest evaluation into the timeline, once: rank 0 speaks for all."""
    if world.rank == 0:
        loss = lineage.validation_loss
        message = f"validation loss {loss:.4f}"
        emit(Told(kind=EventKind.EVALUATED, message=message, step=lineage.step, data={"loss": loss}))


def is_save_due(step: int, config: TrainingConfig) -> bool:
    """True if a checkpoint follows the 0-based `step`. After the last one comes the final save instead."""
    finished = step + 1
    return finished % config.checkpoint.every_steps == 0 and finished < config.train.steps


def fetch(cut: MicroBatch, step: int, task: Task, dataset: Dataset, samples: SampleOrder) -> WeightedBatch:
    """Read the samples of one micro-batch. One of no sequences reads a sample all the same, to keep step, uncounted."""
    seed = stream_seed(seed=samples.seed, step=step, first_index=cut.first)
    seed_streams(seed)  # a data set that draws random numbers repeats them, too
    indices = range(cut.first, cut.first + max(cut.count, 1))
    batch = dataset.batch(samples.ids(indices).tolist())
    is_counted = cut.count > 0
    tokens = task.num_tokens(batch) if is_counted else 0
    return WeightedBatch(batch=batch, num_tokens=tokens, seed=seed, is_counted=is_counted)


def _not_finite(step: int, output: StepOutput) -> str:
    return (
        f"loss {output.loss}, gradient norm {output.grad_norm} in step {step + 1}: {output.reason or 'not finite'}; "
        "the step was not taken, weights are those of the step before"
    )
