"""In which order a run sees its samples: a pure function of the global index, so a position is one integer.

*One source.* Global index i lies in epoch i // num_samples. Inside an epoch the position is permuted by a keyed
bijection: a Feistel network over the smallest power of four that holds num_samples, walked along its cycle until it
falls inside (format-preserving encryption, Black & Rogaway 2002, section 4). No permutation is stored, any index is
found in O(1), and a run resumed on any number of ranks sees what the uninterrupted one would have seen.

*Validation.* One more permutation, keyed by the number of samples alone, puts all samples in a row: the first of them
are held out, training permutes the rest. So jobs with different seeds are measured on the same held-out samples, and
none of them ever trains on one.

*Mixtures.* Indices are dealt to the sources by one fixed row of slots, repeated for ever, in which each source has its
share and its slots lie as evenly as they can. A source's k-th slot takes its k-th sample: each sample comes once a pass
over its source, whatever the weights, and every stretch of indices holds the weights to within a sample.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from workers.data.dataset import DataError

ORDER_RULE: Final = (
    "feistel-8r-splitmix64"  # names the rule below; change it and old positions mean other samples
)
# Slots of a mixture's row: 2^5 * 3^2 * 5^2 * 7, so that percents, halves, thirds and sevenths are exact.
ROW_SLOTS: Final = 50_400

_ROUNDS: Final = 8
_HOLD_OUT_SEED: Final = 0x5641_4C49_4441_5445 << 128  # "VALIDATE", beyond what a job's seed usually is

Indices = range | Sequence[int] | npt.NDArray[np.integer]
Ids = npt.NDArray[np.int64]
_U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data set in the order: how much it holds, how much of that is held out, its slots in a row."""

    num_samples: int
    num_held_out: int = 0
    share: int = 1

    @property
    def num_training(self) -> int:
        """Samples that one pass trains."""
        return self.num_samples - self.num_held_out

    def training_ids(self, positions: Ids, *, seed: int) -> Ids:
        """Return the source's own id at each position of its endless stream."""
        return self._from_row(
            sample_ids(positions, num_samples=self.num_training, seed=seed) + self.num_held_out
        )

    def held_out_ids(self, positions: Ids) -> Ids:
        """Return the source's own id of each of its held-out samples, by position in [0, num_held_out)."""
        return self._from_row(positions)

    def _from_row(self, places: Ids) -> Ids:
        if self.num_held_out == 0:
            return places  # nothing to part: the order stays as it was before there was validation
        return sample_ids(places, num_samples=self.num_samples, seed=_HOLD_OUT_SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """Which sample each global index trains, and which samples are held out. Ids number the sources end to end."""

    sources: tuple[Source, ...]
    seed: int

    @property
    def num_validation(self) -> int:
        """Samples that are held out of training, in all sources."""
        return sum(source.num_held_out for source in self.sources)

    def ids(self, indices: Indices) -> Ids:
        """Return the sample of each global index (any order, any distance, up to 2**63): shape as `indices`.

        Never one that is held out. Costs O(1) an index.
        """
        rows, slots = np.divmod(_positions(indices), sum(source.share for source in self.sources))
        source_of_slot, turn_of_slot = _deal(tuple(source.share for source in self.sources))
        owners, turns = source_of_slot[slots], turn_of_slot[slots]
        ids = np.empty(len(slots), dtype=np.int64)
        for number, (source, first_id) in enumerate(zip(self.sources, self._first_ids(), strict=True)):
            mine = owners == number
            positions = rows[mine] * source.share + turns[mine]
            ids[mine] = first_id + source.training_ids(positions, seed=_source_seed(self.seed, number))
        return ids

    def validation_ids(self, positions: Indices) -> Ids:
        """Return the held-out samples at `positions` in [0, num_validation): any first n are a fair draw from all."""
        drawn = sample_ids(positions, num_samples=max(1, self.num_validation), seed=_HOLD_OUT_SEED)
        assert len(drawn) == 0 or max(positions) < self.num_validation, (max(positions), self.num_validation)
        ids, first_place = np.empty_like(drawn), 0
        for source, first_id in zip(self.sources, self._first_ids(), strict=True):
            mine = (first_place <= drawn) & (drawn < first_place + source.num_held_out)
            ids[mine] = first_id + source.held_out_ids(drawn[mine] - first_place)
            first_place += source.num_held_out
        return ids

    def claim(self, data_digest: str) -> str:
        """Return what a checkpoint says of its data: two jobs with one claim and one seed see the same samples."""
        shares = ":".join(str(source.share) for source in self.sources) if len(self.sources) > 1 else ""
        held_out = f"{self.num_validation} held out" if self.num_validation else ""
        return ", ".join(part for part in (data_digest, shares and f"mixed {shares}", held_out) if part)

    def _first_ids(self) -> Iterable[int]:
        return itertools.accumulate((source.num_samples for source in self.sources[:-1]), initial=0)


def sample_order(
    sizes: Sequence[int],
    *,
    seed: int,
    weights: Sequence[float] | None = None,
    validation_ratio: float = 0.0,
) -> SampleOrder:
    """Return the order over sources of `sizes` samples each, mixed by `weights` (relative; None: there is one source).

    Of each source the ratio is held out, rounded, at least one sample and never all. Raises DataError where a source
    has one sample only, which cannot be parted.
    """
    shares = (1,) if weights is None else apportion(weights)
    held_out = [_num_held_out(size, validation_ratio) for size in sizes]
    return SampleOrder(
        sources=tuple(
            Source(num_samples=size, num_held_out=held, share=share)
            for size, held, share in zip(sizes, held_out, shares, strict=True)
        ),
        seed=seed,
    )


def apportion(weights: Sequence[float]) -> tuple[int, ...]:
    """Return each source's slots in a row of about ROW_SLOTS: in proportion, at least one each.

    Off by less than a slot (2e-5 of the samples), but for a source that would get none.
    """
    if len(weights) == 1:
        return (1,)
    exact = [weight / sum(weights) * ROW_SLOTS for weight in weights]
    shares = [int(slots) for slots in exact]
    most_cut = sorted(range(len(exact)), key=lambda number: shares[number] - exact[number])
    for number in most_cut[: ROW_SLOTS - sum(shares)]:
        shares[number] += 1
    return tuple(max(1, share) for share in shares)


@lru_cache(maxsize=4)
def _deal(shares: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, for each slot of a row, its source and how many slots the source had before: two arrays of sum(shares).

    Slot k of a source that has n wants to lie at (k + 1/2) / n of the row; slots lie in that order.
    """
    owners = np.concatenate([np.full(share, number) for number, share in enumerate(shares)])
    turns = np.concatenate([np.arange(share) for share in shares])
    wanted = (turns + 0.5) / np.array(shares)[owners]
    by_place = np.argsort(wanted, kind="stable")
    return owners[by_place], turns[by_place]


def _num_held_out(num_samples: int, ratio: float) -> int:
    if ratio == 0:
        return 0
    if num_samples < 2:
        raise DataError(
            f"validation.ratio: {ratio} of {num_samples} sample(s) cannot be held out with any left to train: "
            "give more data, lower data.seq_len, or set the ratio to 0"
        )
    return min(max(1, round(num_samples * ratio)), num_samples - 1)


def _source_seed(seed: int, number: int) -> int:
    """The first source has the job's own seed, so that a mixture of one is that source."""
    return seed + (number << 192)


def _positions(indices: Indices) -> Ids:
    positions = np.asarray(indices, dtype=np.int64)
    assert positions.ndim == 1, positions.shape
    assert positions.size == 0 or positions.min() >= 0, positions.min()
    return positions


def sample_ids(indices: Indices, *, num_samples: int, seed: int) -> Ids:
    """Return the sample id of each index of one source: shape as `indices`, values in [0, num_samples).

    Over the indices of one epoch each id comes exactly once; another seed or epoch gives another order.
    """
    assert num_samples > 0, num_samples
    epochs, offsets = np.divmod(_positions(indices), num_samples)
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
