"""What goes wrong in a simulated run, drawn from the run's seed."""

import random

import msgspec

Range = tuple[float, float]
"""Least and most seconds, drawn evenly."""


class SimFaults(msgspec.Struct, frozen=True):
    """Chances per opportunity, 0..1, and times in virtual seconds. After `until_s` all is calm.

    A message takes `delay_s`, or `slow_s` with chance `slow`. `reorder`: it may overtake earlier
    ones of its sender. Each `mischief_s` a process is killed (`crash`), frozen (`pause`) or cut off
    (`disconnect`), all processes are parted in two, each of which hears only its own on the bus and
    heals by itself (`partition`), or the journal is purged up to a random sequence, made anew
    (`recreate`) or loses its last records though acknowledged (`truncate`).
    `crash_at_effect`: a process dies between two effects of one turn. `pause_at_effect`: it stands
    still there, and does the rest of that turn, decided before, when it goes on. `spoil`: an object
    is stored damaged, and acknowledged all the same. `busy`: the next slice of a long job waits for
    `busy_s`, since other turns take that long. `linger`: an outage lasts `linger_s`, longer than
    any lease. `late_tail`: a tail that was given up delivers for another `slow_s`.

    Each start of a process draws its clock, also when all is calm: ahead of the others by `skew_s`
    at most, and faster or slower by a share of `drift` at most.
    """

    until_s: float = 0.0
    delay_s: Range = (0.0005, 0.01)
    slow: float = 0.0
    slow_s: Range = (0.1, 1.5)
    reorder: float = 0.0
    lose_append: float = 0.0
    lose_ack: float = 0.0
    repeat_append: float = 0.0
    repeat_delivery: float = 0.0
    lose_message: float = 0.0
    lose_answer: float = 0.0
    garbage: float = 0.0
    crash_at_effect: float = 0.0
    pause_at_effect: float = 0.0
    spoil: float = 0.0
    busy: float = 0.0
    busy_s: Range = (0.001, 0.2)
    linger: float = 0.0
    linger_s: Range = (3.0, 5.0)
    late_tail: float = 0.0
    mischief_s: float = 0.25
    crash: float = 0.0
    pause: float = 0.0
    disconnect: float = 0.0
    partition: float = 0.0
    purge: float = 0.0
    recreate: float = 0.0
    truncate: float = 0.0
    outage_s: Range = (0.05, 2.0)
    skew_s: float = 0.0
    drift: float = 0.0


_KINDS = (
    "slow",
    "reorder",
    "lose_append",
    "lose_ack",
    "repeat_append",
    "repeat_delivery",
    "lose_message",
    "lose_answer",
    "garbage",
    "crash_at_effect",
    "crash",
    "pause",
    "disconnect",
    "purge",
    "recreate",
    "truncate",
    "spoil",
    "busy",
    "linger",
    "pause_at_effect",
    "late_tail",
    "partition",
)
_CEILINGS = {
    "slow": 0.05,
    "reorder": 0.1,
    "garbage": 0.05,
    "crash_at_effect": 0.002,
    "pause_at_effect": 0.005,
    "late_tail": 1.0,
    "crash": 0.05,
    "pause": 0.1,
    "disconnect": 0.1,
    "partition": 0.1,
    "purge": 0.05,
    "recreate": 0.02,
    "truncate": 0.03,
}
_CEILING = 0.2


def draw_plan(
    rng: random.Random, until_s: float, without: frozenset[str] = frozenset()
) -> SimFaults:
    """Return a storm: a random half of the fault kinds, each with a random chance.

    Leaving kinds out at random finds more bugs than all of them always: faults mask each other.
    Source: Groce et al., "Swarm Testing", ISSTA 2012.
    """
    chances = {
        kind: rng.random() * _CEILINGS.get(kind, _CEILING)
        for kind in _KINDS
        if rng.random() < 0.5 and kind not in without
    }
    return msgspec.structs.replace(SimFaults(until_s=until_s), **chances)


class Faults:
    """Asks the dice; every question moves the one random stream of the run."""

    def __init__(self, plan: SimFaults, rng: random.Random) -> None:
        self.plan = plan
        self._rng = rng

    def strikes(self, chance: float, now: float) -> bool:
        """Return whether something with that chance happens now."""
        return chance > 0.0 and now < self.plan.until_s and self._rng.random() < chance

    def delay(self, now: float) -> float:
        """Return how long a message takes."""
        slow = self.strikes(self.plan.slow, now)
        return self.between(self.plan.slow_s if slow else self.plan.delay_s)

    def outage(self) -> float:
        """Return how long a process stays away, frozen or cut off."""
        plan = self.plan
        lingers = plan.linger > 0.0 and self._rng.random() < plan.linger
        return self.between(plan.linger_s if lingers else plan.outage_s)

    def between(self, limits: Range) -> float:
        """Return a number drawn evenly between two."""
        return limits[0] + (limits[1] - limits[0]) * self._rng.random()

    def below(self, count: int) -> int:
        """Return a number drawn evenly from 0 to `count` - 1."""
        return int(self._rng.random() * count)

    def spoil(self, data: bytes) -> bytes:
        """Return `data` with one bit of it turned."""
        place = self.below(len(data))
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def garble(self, data: bytes) -> bytes:
        """Return what is no message: a cut one, or a server's answer gone astray.

        Not a flipped bit: below us are checksums, and a wrong hash that decodes is no garbage.
        """
        if self.below(2):
            return data[: self.below(len(data))]
        return b'{"stream":"KVMESH_EVENTS_code","seq":7}'
