from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from kvmesh.core.cost.weights import (
    MOST_WEIGHTS,
    WeightSpec,
    WeightTable,
    weights_of,
)
from kvmesh.errors import ConfigError


class Pair(msgspec.Struct, frozen=True):
    hit: Annotated[float, Meta(ge=0, le=10, description="what a hit counts for")] = 2.0
    most: Annotated[int, Meta(ge=1, le=64)] = 8


TABLE = WeightTable(Pair)


def test_weights_are_read_of_a_struct() -> None:
    assert TABLE.specs == (
        WeightSpec("hit", "float", 2.0, 0, 10, "what a hit counts for"),
        WeightSpec("most", "int", 8, 1, 64),
    )
    assert TABLE.default == Pair()
    assert "hit" in TABLE
    assert "miss" not in TABLE
    assert str(TABLE) == "hit (0 to 10, default 2), most (1 to 64, default 8)"


def test_some_weights_are_changed_and_the_others_stay() -> None:
    changed = TABLE.make({"most": 4.0}, "here")

    assert changed == Pair(2.0, 4)
    assert isinstance(weights_of(changed)["most"], int)
    assert TABLE.make({"hit": 1}, "here", changed) == Pair(1.0, 4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"miss": 1.0}, r"here: there is no weight 'miss' here; it has hit \(0 to 10, default 2\)"),
        ({"hit": 10.1}, "here: weight hit is 10.1: use a number from 0 to 10"),
        ({"hit": -0.1}, "weight hit is -0.1"),
        ({"hit": float("nan")}, "weight hit is nan"),
        ({"most": float("inf")}, "weight most is inf: use a number from 1 to 64"),
        ({"most": 1.5}, "weight most is 1.5: use a whole number from 1 to 64"),
    ],
)
def test_what_is_no_weight_or_beyond_its_range_is_refused(
    values: dict[str, float], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        TABLE.make(values, "here")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (float, r"Own.one has no range; write Annotated\[float"),
        (Annotated[float, Meta(ge=0)], "Own.one has no range"),
        (Annotated[float, Meta(ge=2, le=1)], "Own.one has no range"),
        (Annotated[float, Meta(ge=0, le=0.5)], "Own.one, its default: weight one is 1: use"),
        (str, "Own.one is no number"),
        (bool, "Own.one is no number"),
    ],
)
def test_a_weight_without_a_number_or_a_range_is_refused(kind: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WeightTable(msgspec.defstruct("Own", [("one", kind, 1.0)], frozen=True))


@pytest.mark.parametrize("default", [True, "1"])
def test_a_default_is_a_number(default: object) -> None:
    kind = Annotated[float, Meta(ge=0, le=2)]

    with pytest.raises(ConfigError, match=r"Own.one has no default; write one behind its type"):
        WeightTable(msgspec.defstruct("Own", [("one", kind, default)], frozen=True))
    with pytest.raises(ConfigError, match=r"Own.one has no default"):
        WeightTable(msgspec.defstruct("Own", [("one", kind)], frozen=True))


def test_the_number_of_weights_is_bounded() -> None:
    kind = Annotated[float, Meta(ge=0, le=2)]
    fields = [(f"w{number}", kind, 1.0) for number in range(MOST_WEIGHTS + 1)]

    assert len(WeightTable(msgspec.defstruct("Own", fields[:-1])).specs) == MOST_WEIGHTS
    with pytest.raises(ConfigError, match="Own: 33 weights: at most 32"):
        WeightTable(msgspec.defstruct("Own", fields))


def test_a_number_is_brought_to_the_nearest_that_may_be() -> None:
    hit, most = TABLE.specs

    assert [hit.fit(number) for number in (-1.0, 3.5, 99.0)] == [0.0, 3.5, 10.0]
    assert [most.fit(number) for number in (-1.0, 3.6, 99.0)] == [1.0, 4.0, 64.0]
