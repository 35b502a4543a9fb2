"""What the forkserver imports before the first rank is forked: kept as data, checked by every agent.

Found by the difference of `sys.modules` over a first training step; `tests/torch` fails when a step imports more of
torch than this. Nothing here may touch CUDA, start a thread or run user code: all of it is inherited by every rank.
"""

import sys
from typing import Final

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


def cold_modules() -> tuple[str, ...]:
    """Modules of `PRELOAD` that this process has not imported. Run in a forked process: the forkserver says nothing."""
    return tuple(name for name in PRELOAD if name not in sys.modules)
