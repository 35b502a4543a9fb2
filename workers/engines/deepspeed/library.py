"""The one place that imports DeepSpeed. It reads the environment when it is imported, so that is set here first."""

import logging
import os
import sys
from typing import Any

from workers.errors import ConfigError
from workers.world import World


def load_deepspeed(world: World) -> Any:
    """Return the module `deepspeed`, ready for the process group that the ranks have met in. Every rank calls it.

    Raises ConfigError where it is not installed.
    """
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.world_size),
        LOCAL_RANK=os.environ.get("LOCAL_RANK", "0"),
    )
    try:
        # DeepSpeed takes seconds to import and is one engine of three; a job without it never pays for it.
        import deepspeed
        from deepspeed.utils import logger
    except ImportError as error:
        raise ConfigError(
            f"engine.kind deepspeed: {error}; install deepspeed on the nodes or use `kind: fsdp`"
        ) from error
    logger.setLevel(logging.ERROR)
    # It would compile a kernel for reductions in shared memory, for minutes, inside the job; none of ours use it.
    backend: Any = sys.modules[
        "deepspeed.comm.torch"
    ]  # by name: the attribute of `deepspeed.comm` is torch itself
    backend.build_shm_op = lambda: None
    # Our ranks are held to equal weights already, and its broadcast cannot send a parameter of 0 dims.
    deepspeed.DeepSpeedEngine._broadcast_model = lambda engine: None
    if not deepspeed.comm.is_initialized():
        name = "nccl" if world.device.type == "cuda" else "gloo"
        deepspeed.init_distributed(name, auto_mpi_discovery=False, verbose=False)
    return deepspeed
