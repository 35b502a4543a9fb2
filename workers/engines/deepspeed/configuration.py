"""From a job file to DeepSpeed's own configuration. Pure: knows its keys, never imports it.

What a job file says, we do ourselves, so that every engine trains the same: the batch, clipping, the loss scale, the
learning rate and the update. DeepSpeed is asked for what it is there for: to cut, gather, reduce and offload.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workers.contract.config import Engine, Precision

BUCKET_ELEMENTS: Final = 50_000_000  # reduced or gathered at once; DeepSpeed's own default is ten times that
GROUP_ELEMENTS: Final = 50_000_000  # of a rank's part, updated at once where its state lies in files
STATE_BUFFERS: Final = 4  # master, two moments and gradient of one such group
_ALIGNMENT: Final = 4096  # elements; more than any part is rounded up by
_NAMES: Final = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What buffers are measured by, in elements of whole parameters."""

    total: int
    largest: int  # parameter
    most_together: int  # parameters that one module has by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where and how offloaded state lies in files."""

    directory: str  # this rank's own
    smallest_bytes: int  # a smaller tensor stays in memory
    world_size: int

    def largest_part(self, size: ModelSize) -> int:
        """Return the elements of one rank's part of the largest parameter."""
        return -(-size.largest // self.world_size)

    def param_buffers(self, size: ModelSize) -> int:
        """Return how many parameters may be in memory at once: what a module has and what is fetched ahead."""
        return 2 * size.most_together + 4

    def locked_bytes(self, engine: Engine, size: ModelSize, *, item_bytes: int) -> int:
        """Return the memory that DeepSpeed locks for its buffers, about, and no less. `item_bytes` is of a parameter."""
        group = min(-(-size.total // self.world_size), GROUP_ELEMENTS) + self.largest_part(size) + _ALIGNMENT
        state = 4 * STATE_BUFFERS * group if engine.offload.optimizer == "nvme" else 0
        if engine.offload.params != "nvme":
            return state
        # DeepSpeed 0.19.8 takes room for whole parameters where parts go to files after an update.
        whole = min(size.total, GROUP_ELEMENTS * self.world_size + size.largest) + _ALIGNMENT
        fetched = self.param_buffers(size) * (self.largest_part(size) + _ALIGNMENT)
        return state + item_bytes * (whole + fetched)


def configuration(
    engine: Engine, precision: Precision, *, accumulation: int, size: ModelSize, files: Files | None
) -> dict[str, Any]:
    """Return the configuration of one engine. A bucket holds the largest parameter, and never more than there is."""
    bucket = max(size.largest, min(BUCKET_ELEMENTS, size.total), 1)
    bucket += bucket % 2  # DeepSpeed wants a multiple of its alignment of partitions
    return {
        "train_micro_batch_size_per_gpu": 1,  # counters of its own that nobody reads
        "gradient_accumulation_steps": accumulation,
        "steps_per_print": 2**31,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "communication_data_type": _NAMES[precision.reduce],
        "data_types": {"grad_accum_dtype": "fp32"},
        "bf16": {"enabled": precision.params == "bf16"},
        # The loss is scaled by us: a constant 1 keeps DeepSpeed from doing it again.
        "fp16": {"enabled": precision.params == "fp16", "loss_scale": 1.0, "auto_cast": False},
        "zero_optimization": _zero(engine, bucket, size, files),
        "aio": {"block_size": files.smallest_bytes} if files else None,
    }


def _zero(engine: Engine, bucket: int, size: ModelSize, files: Files | None) -> Mapping[str, Any]:
    if engine.stage == 0:
        return {"stage": 0}
    zero: dict[str, Any] = {
        "stage": engine.stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "contiguous_gradients": True,
        "overlap_comm": False,  # DeepSpeed 0.19.8 has it on by default in stage 3; on a CPU there is no second stream
        "round_robin_gradients": False,  # a parameter's place has to be one interval
    }
    if engine.offload.optimizer != "none":
        zero["offload_optimizer"] = {"device": engine.offload.optimizer, **_state_files(engine, files)}
    if files is not None:
        zero["sub_group_size"] = GROUP_ELEMENTS
    if engine.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": bucket if engine.prefetch.forward else 0,
            "stage3_max_live_parameters": bucket,
            # What is kept for the next use takes a buffer, of which there are few.
            "stage3_max_reuse_distance": 0 if engine.offload.params == "nvme" else bucket,
            "stage3_param_persistence_threshold": 0,  # what is cut stays cut: bytes are what the stage promises
        }
        if engine.offload.params != "none":
            zero["offload_param"] = {"device": engine.offload.params, **_param_files(engine, size, files)}
        if engine.shard_group_size is not None:
            zero["zero_hpz_partition_size"] = engine.shard_group_size
    return zero


def _state_files(engine: Engine, files: Files | None) -> Mapping[str, Any]:
    if engine.offload.optimizer != "nvme":
        return {}
    assert files is not None
    return {"nvme_path": files.directory, "buffer_count": STATE_BUFFERS}


def _param_files(engine: Engine, size: ModelSize, files: Files | None) -> Mapping[str, Any]:
    if engine.offload.params != "nvme":
        return {}
    assert files is not None
    return {
        "nvme_path": files.directory,
        "buffer_count": files.param_buffers(size),
        "buffer_size": files.largest_part(size) + _ALIGNMENT,
        "max_in_cpu": 0,  # DeepSpeed would keep the first billion in host memory
    }
