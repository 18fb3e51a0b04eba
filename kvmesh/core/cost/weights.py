"""The weights of a cost formula: named, typed, each with a range, a default and a meaning."""

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec
from msgspec.inspect import Field, FloatType, IntType, Metadata, StructType, Type, type_info

from kvmesh.errors import ConfigError

Weights = msgspec.Struct
"""One formula's weights: a frozen Struct of its own, a field for each."""

MOST_WEIGHTS: Final = 32
"""A formula has at most so many, as the compiled core does (kvmesh/native/decide/costs.h)."""


class NoWeights(msgspec.Struct, frozen=True):
    """The weights of a formula that has none."""


NO_WEIGHTS: Final = NoWeights()


class WeightSpec(msgspec.Struct, frozen=True):
    """One weight: any `kind` of number from `lower` to `upper`, both included."""

    name: str
    kind: Literal["float", "int"]
    default: float
    lower: float
    upper: float
    meaning: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.lower:g} to {self.upper:g}, default {self.default:g})"

    def fit(self, number: float) -> float:
        """Return the nearest number to `number` that the weight may be."""
        nearest = min(max(number, self.lower), self.upper)
        return float(round(nearest)) if self.kind == "int" else nearest

    def read(self, number: float, place: str) -> float:
        """Return `number` as the formula takes it. Raises `ConfigError` naming `place`."""
        if not self.lower <= number <= self.upper:
            allowed = f"use a number from {self.lower:g} to {self.upper:g}"
        elif self.kind == "int" and number != int(number):
            allowed = f"use a whole number from {self.lower:g} to {self.upper:g}"
        else:
            return int(number) if self.kind == "int" else float(number)
        raise ConfigError(f"{place}: weight {self.name} is {number:g}: {allowed}")


class WeightTable:
    """The weights that a formula declares by a Struct: `default` is one of all defaults.

    Each field is a float or an int with a default and two bounds:
    `Annotated[float, msgspec.Meta(ge=0, le=10, description="…")]`.
    """

    def __init__(self, kind: type[Weights]) -> None:
        """Raises `ConfigError` for a Struct that says less."""
        info = type_info(kind)
        assert isinstance(info, StructType)
        if len(info.fields) > MOST_WEIGHTS:
            raise ConfigError(
                f"{kind.__name__}: {len(info.fields)} weights: at most {MOST_WEIGHTS}"
            )
        self.specs = tuple(_spec(field, f"{kind.__name__}.{field.name}") for field in info.fields)
        self.default = kind()

    def __contains__(self, name: str) -> bool:
        return any(spec.name == name for spec in self.specs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.specs)) or "no weights"

    def make(self, values: Mapping[str, float], place: str, base: Weights | None = None) -> Weights:
        """Return `base`, at first the defaults, with these values.

        Raises `ConfigError` that names `place` and the weights there are, or their range.
        """
        specs = {spec.name: spec for spec in self.specs}
        unknown = [name for name in values if name not in specs]
        if unknown:
            raise ConfigError(f"{place}: there is no weight {unknown[0]!r} here; it has {self}")
        found = {name: specs[name].read(number, place) for name, number in values.items()}
        return msgspec.structs.replace(self.default if base is None else base, **found)


def weights_of(weights: Weights) -> dict[str, float]:
    """Return weights by name."""
    return msgspec.structs.asdict(weights)


def _spec(field: Field, place: str) -> WeightSpec:
    kind, meaning = _bare(field.type)
    if not isinstance(kind, FloatType | IntType):
        raise ConfigError(f"{place} is no number; annotate it as float or int")
    lower, upper = kind.ge, kind.le
    if lower is None or upper is None or lower > upper:
        raise ConfigError(
            f"{place} has no range; write Annotated[float, msgspec.Meta(ge=0, le=10)]"
        )
    default = field.default
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise ConfigError(f"{place} has no default; write one behind its type")
    spec = WeightSpec(
        name=field.name,
        kind="int" if isinstance(kind, IntType) else "float",
        default=default,
        lower=lower,
        upper=upper,
        meaning=meaning,
    )
    spec.read(default, f"{place}, its default")
    return spec


def _bare(found: Type) -> tuple[Type, str]:
    """Return a field's type without what is only told about it, and its description."""
    if isinstance(found, Metadata):
        schema = cast("dict[str, object]", found.extra_json_schema or {})
        return found.type, str(schema.get("description", ""))
    return found, ""
