"""Seeds as a function of position, and the generators that start from them."""

import random

import numpy as np
import torch

from workers.random_streams import seed_streams, stream_seed


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_every_position_has_a_seed_of_its_own() -> None:
    places = [(seed, step, first) for seed in range(3) for step in range(20) for first in range(20)]
    seeds = [stream_seed(seed=seed, step=step, first_index=first) for seed, step, first in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_starts_all_global_generators_anew() -> None:
    seed = stream_seed(seed=7, step=3, first_index=96)
    seed_streams(seed)
    first = draw()
    draw()
    seed_streams(seed)
    assert draw() == first
    seed_streams(seed + 1)
    assert all(one != other for one, other in zip(draw(), first, strict=True))
