"""When engines of a simulated fleet join and leave, of texts `[WHO@]SECONDS`."""

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from kvmesh.bounds import shown
from kvmesh.errors import ConfigError

Change = Literal["join", "leave"]
Times = tuple[tuple[int, float], ...]
"""Numbers of engines, each with its second of virtual time."""

_TEXT: Final = re.compile(r"(?:(?:worker-|w)?([0-9]{1,6})@)?([0-9]{1,9}(?:\.[0-9]{1,6})?)")


class Timetable(msgspec.Struct, frozen=True):
    """`joins`: engines that are members from a time on; `leaves`: that get nothing new from then
    on. The first `prefillers` of `engines` only compute prompts for the others.

    Raises `ConfigError` where an engine leaves before it joins, or nobody would be left.
    """

    engines: int
    prefillers: int = 0
    joins: Times = ()
    leaves: Times = ()

    def __post_init__(self) -> None:
        """Follow who serves, from change to change; of one moment, joins come first."""
        began = dict(self.joins)
        serving = set(range(self.prefillers, self.engines)) - began.keys()
        if not serving:
            raise ConfigError(
                f"--join: nobody serves before {min(began.values(), default=0.0):g} s; leave "
                "one engine out, or raise --engines"
            )
        changes: list[tuple[float, bool, int]] = [(due_s, False, n) for n, due_s in self.joins]
        changes += [(due_s, True, number) for number, due_s in self.leaves]
        for due_s, leaves, number in sorted(changes):
            if not leaves:
                if number >= self.prefillers:
                    serving.add(number)
                continue
            if due_s < began.get(number, 0.0):
                raise ConfigError(
                    f"--leave {number}@{due_s:g}: the engine joins at {began[number]:g} s; have it "
                    "leave later"
                )
            serving.discard(number)
            if not serving:
                raise ConfigError(
                    f"--leave {number}@{due_s:g}: no engine is left to serve; leave it out, or "
                    "have another one join before"
                )

    def words(self) -> str:
        """Return what happens, in the order of time."""
        changes = [(due_s, f"engine {n} joins at {due_s:g} s") for n, due_s in self.joins]
        changes += [(due_s, f"engine {n} leaves at {due_s:g} s") for n, due_s in self.leaves]
        return ", ".join(words for _, words in sorted(changes))


def parse_timetable(
    join: Sequence[str], leave: Sequence[str], engines: int, prefillers: int = 0
) -> Timetable:
    """Return what texts `[WHO@]SECONDS` say. WHO is an engine's number from 0, `w3` or `worker-3`;
    without it, the engine of the highest number that neither flag names. Raises `ConfigError`.
    """
    named: set[int] = set()
    read = {flag: _read(flag, texts, engines) for flag, texts in _flags(join, leave)}
    for found in read.values():
        named |= {number for number, _ in found if number is not None}
    free = sorted(set(range(engines)) - named)
    times: dict[Change, Times] = {}
    for flag, found in read.items():
        made: list[tuple[int, float]] = []
        for number, due_s in found:
            if number is None and not free:
                raise ConfigError(
                    f"--{flag} {due_s:g}: all {engines} engines are named; raise --engines, or "
                    f"write WHO@SECONDS"
                )
            made.append((free.pop() if number is None else number, due_s))
        times[flag] = tuple(made)
    return Timetable(engines, prefillers, times["join"], times["leave"])


def _flags(join: Sequence[str], leave: Sequence[str]) -> list[tuple[Change, Sequence[str]]]:
    return [("join", join), ("leave", leave)]


def _read(flag: Change, texts: Sequence[str], engines: int) -> list[tuple[int | None, float]]:
    found: list[tuple[int | None, float]] = []
    for text in texts:
        read = _TEXT.fullmatch(text)
        number = int(read[1]) if read and read[1] else None
        if read is None or (number is not None and number >= engines):
            raise ConfigError(
                f"--{flag} {shown(text)}: write [WHO@]SECONDS, an engine's number from 0 to "
                f"{engines - 1} and a second of the run, e.g. 120 or 0@120"
            )
        if number is not None and number in (one for one, _ in found):
            raise ConfigError(
                f"--{flag} {shown(text)}: engine {number} is named twice; name it once"
            )
        found.append((number, float(read[2])))
    return found
