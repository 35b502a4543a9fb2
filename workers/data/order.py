"""In which order a run sees its samples: a pure function of the global index, so a position is one integer.

Global index i lies in epoch i // num_samples. Inside an epoch the position is permuted by a keyed bijection: a Feistel
network over the smallest power of four that holds num_samples, walked along its cycle until it falls inside (format-
preserving encryption, Black & Rogaway 2002, section 4). No permutation is stored, any index is found in O(1), and a
run resumed on any number of ranks sees what the uninterrupted one would have seen.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

ORDER_RULE: Final = (
    "feistel-8r-splitmix64"  # names the rule below; change it and old positions mean other samples
)

_ROUNDS: Final = 8
_U64 = npt.NDArray[np.uint64]


def sample_ids(
    indices: range | Sequence[int] | npt.NDArray[np.integer], *, num_samples: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return the sample id of each global index (any order, any distance): shape as `indices`, values in [0, num_samples).

    Over the indices of one epoch each id comes exactly once; another seed or epoch gives another order.
    """
    assert num_samples > 0, num_samples
    positions = np.asarray(indices, dtype=np.int64)
    assert positions.ndim == 1, positions.shape
    assert positions.size == 0 or positions.min() >= 0, positions.min()
    epochs, offsets = np.divmod(positions, num_samples)
    keys = _round_keys(epochs.astype(np.uint64), seed)
    half_bits = max(1, ((num_samples - 1).bit_length() + 1) // 2)
    ids = offsets.astype(np.uint64)
    outside = np.arange(ids.size)
    while outside.size:
        ids[outside] = _permute(ids[outside], keys[:, outside], half_bits)
        outside = outside[ids[outside] >= num_samples]
    return ids.astype(np.int64)


def _permute(values: _U64, keys: _U64, half_bits: int) -> _U64:
    """Apply one balanced Feistel network on 2 * half_bits bits: a bijection for every key, whatever the round function."""
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _round_keys(epochs: _U64, seed: int) -> _U64:
    """Return one key for each round and index, shape [rounds, indices]; equal within an epoch."""
    words = [
        np.uint64(seed >> shift & 0xFFFF_FFFF_FFFF_FFFF) for shift in range(0, seed.bit_length() or 1, 64)
    ]
    state = _mix(epochs)
    for word in words:
        state = _mix(state ^ word)
    return np.stack([_mix(state + np.uint64(round_)) for round_ in range(_ROUNDS)])


def _mix(values: _U64) -> _U64:
    """Return splitmix64's output for each value (Steele, Lea & Flood 2014): each input bit moves half of the output's."""
    z = values + np.uint64(0x9E37_79B9_7F4A_7C15)  # wraps modulo 2**64, as meant
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))
