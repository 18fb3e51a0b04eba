"""Kinds of values that settings take, with their bounds."""

from dataclasses import Field
from typing import Annotated, Any, Final, cast, get_args, get_origin

from cyclopts import Group, Parameter
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
Often = Parameter(show=True)
"""One of the settings that `--help` shows; `--help-all` shows all."""
Engines = Parameter(group=Group("Engines", sort_key=1))
Events = Parameter(group=Group("KV events", sort_key=2))
Routers = Parameter(group=Group("Routers", sort_key=2))
Probes = Parameter(group=Group("Probes", sort_key=3))
Cache = Parameter(group=Group("Cache and speed", sort_key=4))
FrontDoor = Parameter(group=Group("Front door", sort_key=3))
Routing = Parameter(group=Group("Routing", sort_key=4))
Limits = Parameter(group=Group("Limits and failures", sort_key=5))
Faults = Parameter(group=Group("Faults to play", sort_key=5))
Mesh = Parameter(group=Group("Mesh and logs", sort_key=6))
"""The title under which help, the configuration page and `config/*.toml` have a setting. What a
dataclass holds is under the title of the field that holds it, unless it has one of its own.
"""
Fixed = Parameter(parse=False)
"""No setting: no flag, variable or file names it. A test, or a program that embeds a part, gives
another value in Python."""


def group_of(field: "Field[Any]") -> Group | None:
    """Return the group that the field of a dataclass of settings names itself."""
    for note in get_args(field.type)[1:]:
        if isinstance(note, Parameter) and note.group:
            return cast("tuple[Group, ...]", note.group)[0]
    return None


def is_fixed(field: "Field[Any]") -> bool:
    """Return whether the field of a dataclass of settings is no setting."""
    return get_origin(field.type) is Annotated and Fixed in get_args(field.type)[1:]
