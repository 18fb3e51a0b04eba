"""A day of figures in bounded memory: sums by slot, fine for an hour, coarse for a day."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, isfinite
from typing import Final

import msgspec

from kvmesh.core.flows.flow import ERRORS, Flow

SUMS: Final = (
    *("requests", *ERRORS, "prompt_tokens", "output_tokens", "ttft_ms", "first_tokens"),
    *("decode_ms", "decode_tokens", "reported_tokens", "cached_tokens"),
)
"""What is counted: several replicas' add up."""

OWN: Final = ("held",)
"""What a replica has at one time: several replicas' add up."""

SHARED: Final = ("queued", "active_requests", "programs_waiting", "workers", "usable_workers")
"""What all replicas of a bucket see alike: of several the largest counts."""

COLUMNS: Final = ("seconds", "looks", *SUMS, *OWN, *SHARED)
"""Of one slot: `seconds` were watched, in `looks` looks; the gauges are sums over these."""

SERIES: Final = (
    *("requests_per_s", *(f"errors_per_s.{one}" for one in ERRORS)),
    *("prompt_tokens_per_s", "output_tokens_per_s", "ttft_ms", "tpot_ms", "cached_share"),
    *OWN,
    *SHARED,
)

_AT: Final = {name: place for place, name in enumerate(COLUMNS)}
_LOOKS: Final = _AT["looks"]
_NONE: Final = -1

Slot = list[float]
"""A value for each of `COLUMNS`."""

Series = dict[str, list[float | None]]


class Tier(msgspec.Struct, frozen=True):
    """`slots` slots of `step_s` seconds each."""

    step_s: float
    slots: int

    @property
    def span_s(self) -> float:
        """Return how far back it reaches."""
        return self.step_s * self.slots


TIERS: Final = (Tier(10.0, 360), Tier(120.0, 720))
"""An hour and a day: 1080 slots of 180 bytes."""

MOST_SPAN_S: Final = TIERS[-1].span_s


def tier_for(span_s: float, tiers: Sequence[Tier] = TIERS) -> Tier:
    """Return the finest tier that reaches back so far, else the coarsest."""
    return next((one for one in tiers if one.span_s >= span_s), tiers[-1])


class Past(msgspec.Struct, frozen=True):
    """What one replica counted: `slots` of `step_s` seconds from Unix time `start` on, oldest
    first; None where it was not there. Each has a value for each of `columns`.
    """

    bucket: str
    step_s: float
    start: float
    columns: list[str]
    slots: list[list[float] | None]


class History:
    """Rings of sums; times are Unix seconds of the caller. Of a clock that was set back the slots
    ahead stay until they are overwritten.
    """

    def __init__(self, tiers: Sequence[Tier] = TIERS) -> None:
        self._tiers = tiers
        width = len(COLUMNS)
        self._rings = [array("d", bytes(8 * width * one.slots)) for one in tiers]
        self._numbers = [array("q", [_NONE]) * one.slots for one in tiers]

    def add(self, values: Mapping[str, float], now: float) -> None:
        """Add up what was counted since the last time; names are of `COLUMNS`."""
        width = len(COLUMNS)
        for tier, ring, numbers in zip(self._tiers, self._rings, self._numbers, strict=True):
            number = floor(now / tier.step_s)
            place = number % tier.slots
            first = place * width
            if numbers[place] != number:
                numbers[place] = number
                ring[first : first + width] = array("d", bytes(8 * width))
            for name, value in values.items():
                ring[first + _AT[name]] += value

    def past(self, bucket: str, span_s: float, now: float) -> Past:
        """Return the slots of the last `span_s` seconds, the present one included."""
        tier = tier_for(span_s, self._tiers)
        place = self._tiers.index(tier)
        ring, numbers, width = self._rings[place], self._numbers[place], len(COLUMNS)
        last = floor(now / tier.step_s)
        count = min(tier.slots, max(1, floor(span_s / tier.step_s)))
        slots: list[list[float] | None] = []
        for number in range(last - count + 1, last + 1):
            at = number % tier.slots
            there = numbers[at] == number
            slots.append(ring[at * width : (at + 1) * width].tolist() if there else None)
        return Past(bucket, tier.step_s, (last - count + 1) * tier.step_s, list(COLUMNS), slots)


def counted(flow: Flow) -> dict[str, float]:
    """Return the sums of a flow by the names of `COLUMNS`."""
    own = {name: float(getattr(flow, name)) for name in SUMS if name not in ERRORS}
    return own | {name: flow.errors.get(name, 0.0) for name in ERRORS}


def fold(parts: Iterable[Past], start: float, step_s: float, count: int) -> list[Slot | None]:
    """Return what several replicas counted as if one had, for `count` slots from `start` on.

    Parts are others' words: slots of another step, or beside the grid, count nothing, columns not
    known neither; values that are no number are 0.
    """
    buckets: dict[tuple[int, str], Slot] = {}
    for part in parts:
        if part.step_s != step_s:
            continue
        first = (part.start - start) / step_s
        if not isfinite(first) or first != floor(first):
            continue
        places = [_AT.get(name) for name in part.columns[: 4 * len(COLUMNS)]]
        for number, told in enumerate(part.slots, int(first)):
            if told is None or not 0 <= number < count:
                continue
            slot = _aligned(told, places)
            if slot[_LOOKS] <= 0.0:
                continue
            other = buckets.get((number, part.bucket))
            whole = slot if other is None else _combined(other, slot, shared=max)
            buckets[number, part.bucket] = whole
    folded: list[Slot | None] = [None] * count
    for (number, _), slot in buckets.items():
        before = folded[number]
        folded[number] = slot if before is None else _combined(before, slot, shared=_sum)
    return folded


def _aligned(told: Sequence[float], places: Sequence[int | None]) -> Slot:
    """Return the values in the order of `COLUMNS`, gauges as their means over the looks."""
    slot = [0.0] * len(COLUMNS)
    for place, value in zip(places, told, strict=False):
        if place is not None and isfinite(value):
            slot[place] = max(0.0, value)
    if looks := slot[_LOOKS]:
        for name in (*OWN, *SHARED):
            slot[_AT[name]] /= looks
        slot[_LOOKS] = 1.0
    return slot


def _sum(one: float, other: float) -> float:
    return one + other


def _combined(one: Slot, other: Slot, shared: Callable[[float, float], float]) -> Slot:
    """Return two slots as one; gauges that replicas share go by `shared`."""
    rules: dict[str, Callable[[float, float], float]] = {"seconds": max, "looks": max}
    rules |= dict.fromkeys(SHARED, shared)
    return [
        rules.get(name, _sum)(mine, its)
        for name, mine, its in zip(COLUMNS, one, other, strict=True)
    ]


def series_of(slots: Sequence[Slot | None]) -> Series:
    """Return each of `SERIES` over the slots, None where nothing was watched or nothing came."""
    points = [None if slot is None else _point(slot) for slot in slots]
    return {name: [None if one is None else one[name] for one in points] for name in SERIES}


def _point(slot: Slot) -> dict[str, float | None]:
    value = dict(zip(COLUMNS, slot, strict=True))
    looks, seconds = value["looks"], max(value["seconds"], 1.0)
    rates = {f"errors_per_s.{one}": value[one] / seconds for one in ERRORS}
    rates |= {
        f"{one}_per_s": value[one] / seconds
        for one in ("requests", "prompt_tokens", "output_tokens")
    }
    return {
        **{name: _rounded(rate) for name, rate in rates.items()},
        "ttft_ms": _share(value["ttft_ms"], value["first_tokens"]),
        "tpot_ms": _share(value["decode_ms"], value["decode_tokens"]),
        "cached_share": _share(value["cached_tokens"], value["reported_tokens"]),
        **{name: _share(value[name], looks) for name in (*OWN, *SHARED)},
    }


def _share(part: float, whole: float) -> float | None:
    return _rounded(part / whole) if whole else None


def _rounded(value: float) -> float:
    return round(value, 4)
