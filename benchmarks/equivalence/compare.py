"""How far a run is from the one that it has to equal, and whether that is near enough."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from benchmarks.equivalence.reference import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest differences that count as equal, all of them relative."""

    loss: float  # of each step
    norm: float  # of the gradient, in each step
    weights: float  # L2 of the difference of a parameter / its own L2


# fp32 is the promise. bf16 was measured: about twice the largest difference that any row has.
TOLERANCES: Final[Mapping[str, Tolerance]] = {
    "fp32": Tolerance(loss=1e-5, norm=1e-5, weights=1e-5),
    "bf16": Tolerance(loss=2e-3, norm=1e-2, weights=5e-3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest relative differences of a run from another, and where it is the weights'."""

    loss: float
    norm: float
    weights: float
    parameter: str  # with the largest difference

    def is_within(self, tolerance: Tolerance) -> bool:
        """True if all are; NaN never is."""
        return (
            self.loss <= tolerance.loss and self.norm <= tolerance.norm and self.weights <= tolerance.weights
        )


def difference(run: Run, expected: Run) -> Difference:
    """Compare step by step and parameter by parameter. Raises ValueError where names or shapes differ."""
    if run.weights.keys() != expected.weights.keys():
        odd = sorted(run.weights.keys() ^ expected.weights.keys())
        raise ValueError(f"parameters that only one of the runs has: {odd}")
    by_parameter = {
        name: _distance(weight, expected.weights[name], name) for name, weight in run.weights.items()
    }
    worst = max(by_parameter, key=lambda name: _rank_of(by_parameter[name]))
    return Difference(
        loss=_largest(run.losses, expected.losses),
        norm=_largest(run.norms, expected.norms),
        weights=by_parameter[worst],
        parameter=worst,
    )


def _largest(values: Sequence[float], expected: Sequence[float]) -> float:
    relative = [abs(a - b) / abs(b) for a, b in zip(values, expected, strict=True)]
    return max(relative, key=_rank_of)


def _distance(weight: torch.Tensor, expected: torch.Tensor, name: str) -> float:
    if weight.shape != expected.shape:
        raise ValueError(f"{name} has shape {list(weight.shape)}, not {list(expected.shape)}")
    length = float(expected.double().norm())
    apart = float((weight.double() - expected.double()).norm())
    return apart / length if length > 0 else apart


def _rank_of(value: float) -> float:
    return math.inf if math.isnan(value) else value  # max() would pass over NaN
