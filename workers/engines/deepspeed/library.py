"""The one place that imports DeepSpeed. It reads the environment when it is imported, so that is set here first."""

import logging
import os
import sys
from typing import Any

from workers.contract.config import Precision
from workers.engines.deepspeed.ops import REMEDY, load_ops
from workers.errors import ConfigError
from workers.world import World

SMALLEST_FILE_BYTES = (
    1024**2
)  # what is smaller stays in memory; DeepSpeed's own bound, here for tests to lower


def load_deepspeed(world: World, precision: Precision, *, needs_files: bool) -> Any:
    """Return the module `deepspeed`, ready for the process group that the ranks have met in. Every rank calls it.

    Raises ConfigError where it is not installed, cannot train in `precision` on this device, or cannot offload to files
    (`needs_files`) for want of its ops.
    """
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.world_size))
    os.environ.setdefault("LOCAL_RANK", "0")
    try:
        # DeepSpeed takes seconds to import and is one engine of three; a job without it never pays for it.
        import deepspeed
        from deepspeed.utils import logger
    except ImportError as error:
        raise ConfigError(
            f"engine.kind deepspeed: {error}; install deepspeed on the nodes or use `kind: fsdp`"
        ) from error
    logger.setLevel(logging.ERROR)
    if precision.params == "fp16" and not deepspeed.accelerator.get_accelerator().is_fp16_supported():
        raise ConfigError(
            f"train.precision.params: DeepSpeed trains no fp16 on {world.device.type}; use `bf16`, or `kind: fsdp`"
        )
    # It would compile a kernel for reductions in shared memory, for minutes, inside the job; none of ours use it.
    backend: Any = sys.modules[
        "deepspeed.comm.torch"
    ]  # by name: the attribute of `deepspeed.comm` is torch itself
    backend.build_shm_op = lambda: None
    # Stage 1 in bf16 would go to an optimizer of its own, which reduces gradients in bf16; this one takes all stages.
    deepspeed.DeepSpeedEngine._do_optimizer_sanity_check = _wrapper_of
    # Our ranks are held to equal weights already, and its broadcast cannot send a parameter of 0 dims.
    deepspeed.DeepSpeedEngine._broadcast_model = lambda engine: None
    deepspeed.ops.op_builder.builder.OpBuilder.jit_load = _refuse_to_compile
    if needs_files:
        load_ops(world.device.type)
        for user in ("optimizer_utils", "partitioned_param_swapper"):
            sys.modules[f"deepspeed.runtime.swap_tensor.{user}"].MIN_AIO_BYTES = SMALLEST_FILE_BYTES  # type: ignore[attr-defined]
    if not deepspeed.comm.is_initialized():
        name = "nccl" if world.device.type == "cuda" else "gloo"
        deepspeed.init_distributed(name, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def _refuse_to_compile(builder: Any, _verbose: bool = True) -> Any:
    raise ConfigError(f"DeepSpeed would compile its op {builder.name} inside the job; {REMEDY}")


def _wrapper_of(engine: Any, _optimizer: Any) -> str | None:
    """Return the name of DeepSpeed's wrapper around an optimizer; None: there is none."""
    return "zero_optimization" if engine.zero_optimization() else None
