"""Which engines of a simulated fleet are sick or slow, and how."""

import re
from collections.abc import Sequence
from math import inf, isfinite
from typing import Final

import msgspec
import xxhash

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.faults import FaultOptions, FaultPlan, check_faults, parse_faults

ALL: Final = "all"

_ENGINE: Final = re.compile("(?:worker-|w)?([0-9]{1,6})")
_SLOW: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)(?:@(\d{1,9}(?:\.\d+)?)(?:-(\d{1,9}(?:\.\d+)?))?)?")
_SHOWN_CHARACTERS: Final = 60


class SlowDown(msgspec.Struct, frozen=True):
    """Every step of some engines takes `factor` times as long, from `from_s` until `until_s`."""

    engines: frozenset[int]
    factor: float
    from_s: float = 0.0
    until_s: float = inf


class HashedDraws:
    """The randomness of one engine's faults: the n-th draw depends on n and the seed alone."""

    def __init__(self, seed: int, engine: int) -> None:
        self._prefix = b"%d/%d/" % (seed, engine)
        self._draws = 0

    def random(self) -> float:
        """Return a float in [0, 1)."""
        self._draws += 1
        return (xxhash.xxh3_64_intdigest(self._prefix + b"%d" % self._draws) >> 11) / 2.0**53


def parse_fleet_faults(texts: Sequence[str], flap: str, engines: int) -> tuple[FaultOptions, ...]:
    """Return each engine's faults, of texts `WHO=SHARE:KIND[=VALUE]`; nothing for none.

    WHO is an engine's number from 0, `worker-3` as reports name it, `w3`, or `all`. All flap alike.
    Raises `ConfigError`.
    """
    check_faults(FaultOptions(flap=flap))
    if not texts:
        return ()
    faults: list[list[str]] = [[] for _ in range(engines)]
    for text in texts:
        who, _, fault = text.partition("=")
        place = f"--fail {text[:_SHOWN_CHARACTERS]}"
        numbers = range(engines) if who == ALL else (_find_engine(who, place, engines),)
        ((_, parsed),) = parse_faults([fault], f"{place}: fault")
        if parsed.tokens:
            raise ConfigError(f"{place}: {parsed.kind} is for the mocker; take cut or hang")
        for number in numbers:
            faults[number].append(fault)
    found = tuple(FaultOptions(fail=tuple(fail), flap=flap) for fail in faults)
    for number, options in enumerate(found):
        parse_faults(options.fail, f"--fail of engine {number}")
    return found


def parse_slow_downs(texts: Sequence[str], engines: int) -> tuple[SlowDown, ...]:
    """Return what texts `WHO=FACTOR[@FROM[-UNTIL]]` say, seconds of virtual time; WHO is as in
    `parse_fleet_faults`. Raises `ConfigError`.
    """
    found: list[SlowDown] = []
    for text in texts:
        who, _, what = text.partition("=")
        place = f"--slow {text[:_SHOWN_CHARACTERS]}"
        numbers = range(engines) if who == ALL else (_find_engine(who, place, engines),)
        read = _SLOW.fullmatch(what)
        factor, from_s, until_s = (
            (float(one or inf) for one in read.groups()) if read else [0.0] * 3
        )
        from_s = from_s if isfinite(from_s) else 0.0
        if factor <= 0.0 or until_s <= from_s:
            raise ConfigError(
                f"{place}: write WHO=FACTOR[@FROM[-UNTIL]], a factor above 0 and rising seconds, "
                "e.g. 0=10 or all=5@60-120"
            )
        found.append(SlowDown(frozenset(numbers), factor, from_s, until_s))
    return tuple(found)


def make_plans(faults: Sequence[FaultOptions], seed: int) -> dict[int, FaultPlan]:
    """Return the plan of each engine that is sick, by its number."""
    return {
        number: FaultPlan(options, HashedDraws(seed, number), 0.0)
        for number, options in enumerate(faults)
        if options.fail
    }


def _find_engine(who: str, place: str, engines: int) -> int:
    found = _ENGINE.fullmatch(who)
    if found is None or int(found[1]) >= engines:
        raise ConfigError(
            f"{place}: write WHO=SHARE:KIND, where WHO is an engine's number from 0 to "
            f"{engines - 1} or {ALL}, e.g. 0=0.3:500"
        )
    return int(found[1])
