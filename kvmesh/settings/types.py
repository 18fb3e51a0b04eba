"""Kinds of values that settings take, with their bounds."""

from dataclasses import Field
from typing import Annotated, Any, Final, get_args, get_origin

from cyclopts import Parameter
from cyclopts.validators import Number

from kvmesh.bounds import MAX_COUNT, MAX_FIGURE, MAX_SECONDS, MAX_TEMPERATURE

MOST_BLOCK_TOKENS: Final = 1 << 20

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Positive = Annotated[int, Parameter(validator=Number(gt=0, lte=MAX_COUNT))]
Count = Annotated[int, Parameter(validator=Number(gte=0, lte=MAX_COUNT))]
NonNegative = Annotated[float, Parameter(validator=Number(gte=0.0, lte=MAX_FIGURE))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0.0, lte=MAX_SECONDS))]
Share = Annotated[float, Parameter(validator=Number(gte=0.0, lte=1.0))]
Temperature = Annotated[float, Parameter(validator=Number(gte=0.0, lte=MAX_TEMPERATURE))]
BlockSize = Annotated[
    int | None, Parameter(validator=Number(gt=0, lte=MOST_BLOCK_TOKENS), alias="--block-size")
]
Flat = Parameter(name="*")
Fixed = Parameter(parse=False)
"""No setting: no flag, variable or file names it. A test, or a program that embeds a part, gives
another value in Python."""


def is_fixed(field: "Field[Any]") -> bool:
    """Return whether the field of a dataclass of settings is no setting."""
    return get_origin(field.type) is Annotated and Fixed in get_args(field.type)[1:]
