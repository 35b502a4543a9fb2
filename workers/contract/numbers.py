"""Numbers that a job file may hold: strict kinds with bounds, so that nothing overflows and `true` is not 1."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field


def _refuse_bool(value: object) -> object:
    """Keep `lr: true` from being read as 1.0."""
    if isinstance(value, bool):
        raise ValueError("is not a number")
    return value


COUNT_LIMIT: Final = 10**9  # so that a product of two counts fits 64 bits
PositiveInt = Annotated[int, Field(gt=0, le=COUNT_LIMIT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=COUNT_LIMIT, strict=True)]
PositiveFloat = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0)]
NonNegativeFloat = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0)]
Ratio = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=1)]
