"""Kinds of values that settings take, with their bounds."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Positive = Annotated[int, Parameter(validator=Number(gt=0))]
Count = Annotated[int, Parameter(validator=Number(gte=0))]
NonNegative = Annotated[float, Parameter(validator=Number(gte=0.0))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0.0))]
Share = Annotated[float, Parameter(validator=Number(gte=0.0, lte=1.0))]
BlockSize = Annotated[int | None, Parameter(validator=Number(gt=0), alias="--block-size")]
Status = Annotated[int, Parameter(validator=Number(gte=400, lte=599))]
Flat = Parameter(name="*")
