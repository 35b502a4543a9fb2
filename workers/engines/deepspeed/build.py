"""From a module and its weights to a `DeepSpeedEngine`."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from workers.contract.batch import plan_batch
from workers.contract.config import Engine, TrainingConfig
from workers.engines.deepspeed import library
from workers.engines.deepspeed.configuration import Files, ModelSize, configuration
from workers.engines.deepspeed.disk import check_lockable, check_written, scratch_directory
from workers.engines.deepspeed.engine import DeepSpeedEngine
from workers.engines.deepspeed.module import Cutter, LaidOut, keep_buffers, lay_out, normalise_in_fp32
from workers.engines.deepspeed.nvme import FileStates, copy_on_one_rank, param_sizes, read_each_once
from workers.engines.deepspeed.optimizer import FragmentOptimizer
from workers.engines.deepspeed.partitions import FlatPartitions, Partitions, Replicas, SlicedPartitions
from workers.engines.forward_order import ForwardOrder
from workers.engines.names import ModuleNames
from workers.engines.precision import torch_dtype
from workers.engines.units import cast_inputs
from workers.engines.weights import InitialWeights
from workers.models.task import Task
from workers.world import World

_log = logging.getLogger(__name__)


def build_deepspeed(
    config: TrainingConfig,
    task: Task,
    world: World,
    *,
    module: nn.Module,
    units: Sequence[nn.Module],
    weights: InitialWeights,
    names: ModuleNames,
) -> DeepSpeedEngine:
    """Lay the weights out and hand the module to DeepSpeed; collective. Raises ConfigError where it is not installed."""
    precision, stage = config.train.precision, config.engine.stage
    deepspeed = library.load_deepspeed(world, precision, needs_files=config.engine.offload.needs_files)
    compute = torch_dtype(precision.params)
    size = _size(module)
    files = _files(config.engine, size, world, compute) if config.engine.offload.needs_files else None
    batch = config.train.batch
    plan = plan_batch(global_sequences=batch.global_sequences, world_size=world.world_size, micro=batch.micro)
    settings = configuration(
        config.engine,
        precision,
        accumulation=plan.accumulation,
        size=size,
        files=files,
    )
    raw = config.read_raw()
    for warning in raw.warnings:
        _log.warning("%s", warning)
    settings["zero_optimization"] = {**settings["zero_optimization"], **raw.tuning}
    cut = _cutter(deepspeed, settings, compute) if stage == 3 else None
    if precision.params != "fp32":
        for unit in (module, *units):
            cast_inputs(unit, compute)
    with keep_buffers(module, world.device):
        laid_out = lay_out(module, weights, compute=compute, rank=world.rank, device=world.device, cut=cut)
        optimizer = FragmentOptimizer(laid_out.trainable, laid_out.empty, config.train.optimizer)
        ds_engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=optimizer,
            model_parameters=list(laid_out.trainable.values()),
            config=settings,
            dist_init_required=False,
        )
    if precision.params != "fp32":
        normalise_in_fp32(module)
    if stage == 3:
        gathered = {name: part for name, part in module.named_modules() if name and part._parameters}
        ForwardOrder(module, gathered, world)
    states = FileStates(ds_engine.optimizer, optimizer)
    engine = DeepSpeedEngine(
        task=task,
        laid_out=laid_out,
        names=names,
        ds_engine=ds_engine,
        optimizer=optimizer,
        partitions=_partitions(stage, ds_engine, laid_out, world),
        files=states,
        train=config.train,
        world=world,
        stage=stage,
    )
    check_written(states.sizes() | param_sizes(module.parameters()))
    return engine


def _size(module: nn.Module) -> ModelSize:
    numels = [parameter.numel() for parameter in module.parameters()]
    together = max(len(part._parameters) for part in module.modules())
    return ModelSize(total=sum(numels), largest=max(numels), most_together=together)


def _files(engine: Engine, size: ModelSize, world: World, compute: torch.dtype) -> Files:
    """Take a directory for this rank's files. Raises ConfigError where they cannot be had here."""
    assert engine.offload.nvme_path is not None
    directory = scratch_directory(engine.offload.nvme_path)
    files = Files(
        directory=str(directory), smallest_bytes=library.SMALLEST_FILE_BYTES, world_size=world.world_size
    )
    check_lockable(files.locked_bytes(engine, size, item_bytes=compute.itemsize))
    return files


def _partitions(stage: int, ds_engine: Any, laid_out: LaidOut, world: World) -> Partitions:
    match stage:
        case 0:
            return Replicas(laid_out.trainable, world.device)
        case 1 | 2:
            return FlatPartitions(ds_engine.optimizer, laid_out.trainable)
        case _:
            return SlicedPartitions(ds_engine.optimizer, laid_out.trainable)


def _cutter(deepspeed: Any, settings: Any, compute: Any) -> Cutter:
    """Return what turns a whole parameter into this rank's part, in compute precision.

    DeepSpeed's own `zero.Init` would broadcast each one first, which cannot be done with one of 0 dims; ours are equal
    on all ranks, and `InitialWeights` holds them to it.
    """
    groups = deepspeed.utils.groups  # of hpZ: made once in a process, whoever asks first
    init = deepspeed.zero.Init(
        config_dict_or_path=settings,  # tells the precision, too: what `dtype` says is ignored on a CPU in 0.19.8
        zero_param_parallel_group=groups._get_zero_param_intra_parallel_group(),
    )

    if init.param_swapper is not None:
        read_each_once(init.param_swapper)
        parts = deepspeed.runtime.zero.partition_parameters
        parts._no_gather_coalesced = copy_on_one_rank(parts._no_gather_coalesced)

    def cut(parameter: nn.Parameter) -> None:
        parameter.data = parameter.data.to(compute)
        init._convert_to_deepspeed_param(parameter)
        parameter.partition()  # type: ignore[attr-defined]

    return cut
