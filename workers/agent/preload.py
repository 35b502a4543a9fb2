"""What the forkserver imports before the first rank is forked: kept as data, checked by every agent.

Found by the difference of `sys.modules` over a first training step; `tests/torch` fails when a step imports more of
torch than this. Nothing here may touch CUDA, start a thread or run user code: all of it is inherited by every rank.
"""

import sys
from collections.abc import Sequence
from typing import Final

from workers.contract.model_config import HfModel, LlamaModel, TaskModel

PRELOAD: Final = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.optim",
    "torch.profiler._cupti_monitor",
    "torch.utils.data",
    "numpy",
    "xxhash",
    "workers.checkpointing.load",
    "workers.checkpointing.save",
    "workers.loop",
    "workers.rank",
    "workers.world",
)


# What `engine.kind: deepspeed` imports on top. It takes seconds, so ranks of other engines do not have it.
DEEPSPEED: Final = (
    "deepspeed",
    "deepspeed.comm.torch",
    "deepspeed.comm.mori",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.moe.ep_count",
    "deepspeed.ops.adam",
    "deepspeed.runtime.engine",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # not used, but stages 1 to 3 load it, and the compiler with it
    "deepspeed.runtime.zero.parameter_offload",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "torch._subclasses.schema_check_mode",
)


# What `model.kind: hf` imports on top, but for the one module of its architecture. It takes seconds, too.
HF: Final = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")
LORA: Final = ("peft", "peft.utils.transformers_weight_conversion")


def preload(engine_kind: str, model: LlamaModel | HfModel | TaskModel | None = None) -> tuple[str, ...]:
    """Return what a forkserver imports for ranks of this engine and model."""
    is_hf = isinstance(model, HfModel)
    has_adapters = isinstance(model, HfModel) and model.lora is not None
    return (
        PRELOAD
        + (DEEPSPEED if engine_kind == "deepspeed" else ())
        + (HF if is_hf else ())
        + (LORA if has_adapters else ())
    )


def cold_modules(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return those of `wanted` that this process has not imported. Run in a forked process: the forkserver says nothing."""
    return tuple(name for name in wanted if name not in sys.modules)
