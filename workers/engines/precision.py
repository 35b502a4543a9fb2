"""Names of dtypes in a job file -> torch's."""

import torch


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that the job file calls `name`."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
