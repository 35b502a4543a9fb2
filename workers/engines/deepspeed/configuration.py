"""From a job file to DeepSpeed's own configuration. Pure: knows its keys, never imports it.

What a job file says, we do ourselves, so that every engine trains the same: the batch, clipping, the loss scale, the
learning rate and the update. DeepSpeed is asked for what it is there for: to cut, gather, reduce and offload.
"""

from collections.abc import Mapping
from typing import Any, Final

from workers.contract.config import Engine, Precision

BUCKET_ELEMENTS: Final = 50_000_000  # reduced or gathered at once; DeepSpeed's own default is ten times that
_NAMES: Final = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}


def configuration(
    engine: Engine, precision: Precision, *, accumulation: int, num_elements: int, largest: int
) -> dict[str, Any]:
    """Return the configuration of one engine.

    `num_elements` counts all parameters, `largest` those of the largest one: a bucket holds at least that, and never
    more than there is.
    """
    bucket = max(largest, min(BUCKET_ELEMENTS, num_elements), 1)
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
        "zero_optimization": _zero(engine, bucket),
    }


def _zero(engine: Engine, bucket: int) -> Mapping[str, Any]:
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
        zero["offload_optimizer"] = _offload(engine.offload.optimizer, engine.offload.nvme_path)
    if engine.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": bucket if engine.prefetch.forward else 0,
            "stage3_max_live_parameters": bucket,
            "stage3_max_reuse_distance": bucket,
            "stage3_param_persistence_threshold": 0,  # what is cut stays cut: bytes are what the stage promises
        }
        if engine.offload.params != "none":
            zero["offload_param"] = _offload(engine.offload.params, engine.offload.nvme_path)
        if engine.shard_group_size is not None:
            zero["zero_hpz_partition_size"] = engine.shard_group_size
    return zero


def _offload(where: str, nvme_path: str | None) -> Mapping[str, Any]:
    return {"device": where} | ({"nvme_path": nvme_path} if where == "nvme" else {})
