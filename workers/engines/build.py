"""From a job file's `engine` to an engine: the module is built, cut into units, and its weights laid out one by one."""

from functools import partial
from typing import assert_never

from torch import nn

from workers.contract.config import TrainingConfig
from workers.engines.blocks import prepare_blocks
from workers.engines.ddp import ReplicatedLayout
from workers.engines.deepspeed import build_deepspeed
from workers.engines.engine import Engine
from workers.engines.fsdp import ShardedLayout
from workers.engines.layout import Layout
from workers.engines.names import read_names
from workers.engines.native import NativeEngine
from workers.engines.units import sharding_units
from workers.engines.weights import InitialWeights
from workers.errors import ConfigError
from workers.models.task import Task, is_base
from workers.random_streams import seed_streams
from workers.world import World


def build_engine(config: TrainingConfig, task: Task, world: World, *, will_load: bool = False) -> Engine:
    """Build the module from the seed and lay it out as `config.engine` says; collective.

    The weights are the same at every world size, under every engine. With `will_load` a checkpoint is loaded before the
    first step, and weights that a `DeferredTask` would give are left zero until then. Raises ConfigError: nothing to train, or ranks
    that built different weights.
    """
    module = _build_module(config.train.seed, task)
    names = read_names(module, partial(is_base, task))
    weights = InitialWeights(task, module, will_load=will_load)
    blocks = task.blocks(module)
    units = sharding_units(module, blocks)
    prepare_blocks(blocks, config.engine)
    layout: Layout
    match config.engine.kind:
        case "ddp":
            layout = ReplicatedLayout(module, units, weights, config.train.precision, world)
        case "fsdp":
            layout = ShardedLayout(module, units, weights, config.engine, config.train.precision, world)
        case "deepspeed":
            engine = build_deepspeed(
                config, task, world, module=module, units=units, weights=weights, names=names
            )
            weights.check_equal(world)
            return engine
        case _:
            assert_never(config.engine.kind)
    weights.check_equal(world)
    return NativeEngine(task=task, module=module, names=names, layout=layout, train=config.train, world=world)


def _build_module(seed: int, task: Task) -> nn.Module:
    """Build on the CPU, in training mode. Raises ConfigError if there is nothing to train."""
    seed_streams(seed)
    module = task.build()
    module.train()
    if not any(parameter.requires_grad for parameter in module.parameters()):
        frozen = sum(1 for _ in module.parameters())
        raise ConfigError(
            f"0 trainable parameters: all {frozen} of the module have requires_grad False; leave at least one trainable"
        )
    return module
