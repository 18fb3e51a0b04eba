"""Kinds of values that settings take, with their bounds."""

from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kvmesh.bounds import MAX_COUNT, MAX_FIGURE, MAX_MEMBERS, MAX_SECONDS, MAX_TEMPERATURE

MOST_BLOCK_TOKENS: Final = 1 << 20
MOST_STREAMS: Final = 1 << 20
MOST_MULTIPLE: Final = 16.0

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Positive = Annotated[int, Parameter(validator=Number(gt=0, lte=MAX_COUNT))]
Count = Annotated[int, Parameter(validator=Number(gte=0, lte=MAX_COUNT))]
NonNegative = Annotated[float, Parameter(validator=Number(gte=0.0, lte=MAX_FIGURE))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0.0, lte=MAX_SECONDS))]
Multiple = Annotated[float, Parameter(validator=Number(gt=0.0, lte=MOST_MULTIPLE))]
Share = Annotated[float, Parameter(validator=Number(gte=0.0, lte=1.0))]
Temperature = Annotated[float, Parameter(validator=Number(gte=0.0, lte=MAX_TEMPERATURE))]
BlockSize = Annotated[
    int | None, Parameter(validator=Number(gt=0, lte=MOST_BLOCK_TOKENS), alias="--block-size")
]
Streams = Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_STREAMS))]
Status = Annotated[int, Parameter(validator=Number(gte=400, lte=599))]
Members = Annotated[int, Parameter(validator=Number(gte=1, lte=MAX_MEMBERS))]
Flat = Parameter(name="*")
