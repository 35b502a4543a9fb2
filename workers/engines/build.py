"""From a job file's `engine` to an engine. Weights are built whole from the seed on every rank, then laid out."""

from typing import assert_never

import torch
import xxhash
from torch import nn

from workers.contract.config import TrainingConfig
from workers.engines.ddp import ReplicatedLayout
from workers.engines.engine import Engine
from workers.engines.fsdp import ShardedLayout
from workers.engines.layout import Layout
from workers.engines.names import read_names
from workers.engines.native import NativeEngine
from workers.engines.units import recompute_in_backward, sharding_units
from workers.errors import ConfigError
from workers.models.task import Task
from workers.random_streams import seed_streams
from workers.world import World


def build_engine(config: TrainingConfig, task: Task, world: World) -> Engine:
    """Build the module from the seed and lay it out as `config.engine` says; collective.

    The weights are the same at every world size, under every engine. Raises ConfigError: nothing to train, or ranks
    that built different weights.
    """
    module = _build_module(config.train.seed, task, world)
    names = read_names(module)
    blocks = task.blocks(module)
    units = sharding_units(module, blocks)
    if config.engine.activation_checkpointing == "full":
        recompute_in_backward(blocks)
    layout: Layout
    match config.engine.kind:
        case "ddp":
            layout = ReplicatedLayout(module, units, config.train.precision, world)
        case "fsdp":
            layout = ShardedLayout(module, units, config.engine, config.train.precision, world)
        case "deepspeed":
            raise ConfigError("engine.kind deepspeed is not in this version")
        case _:
            assert_never(config.engine.kind)
    return NativeEngine(task=task, module=module, names=names, layout=layout, train=config.train, world=world)


def _build_module(seed: int, task: Task, world: World) -> nn.Module:
    """Build on the CPU, in training mode; what is trained becomes fp32, what is frozen keeps its dtype."""
    seed_streams(seed)
    module = task.build()
    module.train()
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        frozen = sum(1 for _ in module.parameters())
        raise ConfigError(
            f"0 trainable parameters: all {frozen} of the module have requires_grad False; leave at least one trainable"
        )
    _check_equal_weights(module, world)
    for parameter in trainable:
        parameter.data = parameter.data.float()
    return module.to(world.device)


def _check_equal_weights(module: nn.Module, world: World) -> None:
    """Refuse ranks whose weights differ: sharded, they would mix into a model that nobody built."""
    digest = xxhash.xxh3_64()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    digests = [row[0] for row in world.gather([digest.intdigest() >> 1])]
    if different := [rank for rank, value in enumerate(digests) if value != digests[0]]:
        raise ConfigError(
            f"ranks {different} built other initial weights than rank 0: build() may draw from the seeded global "
            "generators of torch, numpy and random only"
        )
