"""Random numbers as a pure function of seed and position, so that no rank has a generator state to save.

Before each forward the generators start anew from a seed of their own. At the same width a resumed run repeats its
dropout masks exactly; ranks differ, because each trains other indices.
"""

import hashlib
import random

import numpy as np
import torch


def stream_seed(*, seed: int, step: int, first_index: int) -> int:
    """Return the seed, in [0, 2**63), of the micro-batch of `step` that begins at global index `first_index`."""
    text = f"{seed}:{step}:{first_index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_streams(seed: int) -> None:
    """Start torch's (CPU and CUDA), NumPy's and Python's global generators from `seed`."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
