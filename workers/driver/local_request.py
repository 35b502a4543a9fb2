"""From a config to a launch request without an orchestrator: a new run, one that goes on, or a fork."""

import secrets
from importlib.metadata import version
from pathlib import Path

from workers.checkpointing import catalog, inspect
from workers.contract.config import TrainingConfig
from workers.contract.fork import refused, split_reference
from workers.contract.launch import LaunchRequest, Origin
from workers.contract.location import is_url, join
from workers.contract.manifest import CheckpointId
from workers.contract.restart import Counters
from workers.driver.requests import newest_request
from workers.errors import ConfigError, MissingError

LOCAL_RUNS = "runs"  # where logs lie when checkpoints go to a URL


def make_request(
    config: TrainingConfig,
    *,
    name: str,
    workers: int,
    run_dir: Path | None,
    resume_from: str | None,
    origin: str | None = None,
) -> LaunchRequest:
    """Make a launch request for this machine. A run directory that was used before is continued by a new generation.

    `origin`, `RUN` or `RUN@STEP`, makes the run a fork and holds that checkpoint for it. Raises ConfigError (a fork
    that changes what it may not), StorageError.
    """
    job_id = run_dir.name if run_dir is not None else f"local-{name}-{secrets.token_hex(4)}"
    path = config.checkpoint.storage_path
    where = (run_dir or Path(LOCAL_RUNS if is_url(path) else path) / job_id).absolute()
    storage_url = join(path, job_id) if is_url(path) else None
    earlier = newest_request(storage_url or str(where))
    gpus = config.scaling.gpus_per_worker
    return LaunchRequest(
        job_id=job_id,
        name=name,
        generation=0 if earlier is None else earlier.generation + 1,
        world_size=workers,
        gpus_per_worker=0 if gpus == "auto" else gpus,
        config=config,
        run_dir=str(where),
        storage_url=storage_url,
        counters=Counters(),
        version=version("shardyard"),
        resume_from=resume_from,
        origin=None if origin is None else _hold_origin(origin, config, job_id),
    )


def _hold_origin(reference: str, config: TrainingConfig, job_id: str) -> Origin:
    run, wanted = split_reference(reference)
    run = run if is_url(run) else str(Path(run).absolute())
    request = newest_request(run)
    newest = catalog.choose(catalog.survey(run))
    if request is None or newest is None:
        raise MissingError(f"{run} holds no run with a published checkpoint")
    name = str(newest.checkpoint) if wanted is None else inspect.find(run, wanted)
    _check(request.config, config, name)
    origin = Origin(job_id=request.job_id, run=run, checkpoint=name)
    inspect.hold(run, name, origin.holder(job_id))
    return origin


def _check(old: TrainingConfig, new: TrainingConfig, name: str) -> None:
    kept = [
        f"{change.path}: {change.new} was {change.old}, and a fork keeps it" for change in refused(old, new)
    ]
    checkpoint = CheckpointId.parse(name)
    assert checkpoint is not None
    if new.train.steps <= checkpoint.step:
        kept.append(f"train.steps: {new.train.steps} is not above step {checkpoint.step} of {name}")
    if kept:
        raise ConfigError("; ".join(kept))
