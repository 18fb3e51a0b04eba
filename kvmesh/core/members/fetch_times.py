"""How long workers take to bring cached blocks to the device, learned from first tokens."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_MEMBER
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.tier_credit import DEFAULT_WEIGHTS, TIER_NAMES

PEER: Final = len(DEFAULT_WEIGHTS)
"""The place of another worker's cache among the tiers, behind the farthest of one's own."""

PLACES: Final = PEER + 1

PLACE_NAMES: Final = (*TIER_NAMES, "peer")

PRIOR_WEIGHT: Final = 0.5
"""What a block of another worker's cache is taken to count for before any was fetched."""

MIN_SAMPLE_TOKENS: Final = 256
"""Fewer tokens brought at once tell nothing of how long that takes."""

MOST_TOLD: Final = 32
"""Workers' rows told to other replicas at a time, those of the latest lessons."""

MOST_HEARD: Final = 4096
"""Rows kept of one replica; the oldest goes first."""

_EVERYBODY: Final = WorkerId("")
_QUANTILE: Final = 1.0 / 3.0
_FIRST_STEP: Final = 0.7
_LEAST_STEP: Final = 0.1
_FLEET_SAMPLES: Final = 4.0
_MOST_SAMPLES: Final = 64.0
_FORGOTTEN_S: Final = 600.0
_LEAST_MS_PER_TOKEN: Final = 1e-6
_MOST_MS_PER_TOKEN: Final = 10_000.0


class FetchRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one replica has seen itself: so many `samples` of bringing blocks from `place`, by
    `worker`.

    `place` is a tier, or `PEER`; `worker` "" stands for all of them.
    """

    worker: Annotated[str, Meta(max_length=MAX_MEMBER)]
    place: Annotated[int, Meta(ge=0, le=255)]
    ms_per_token: float
    samples: float


FetchRows = Annotated[tuple[FetchRow, ...], Meta(max_length=1024)]
"""What one message tells of fetch times."""


class FetchReport(msgspec.Struct, frozen=True):
    """What is believed of one worker and place, and on how many samples of anybody."""

    ms_per_token: float
    samples: float


class _Belief:
    """A quantile of samples, followed in steps; half as sure after `_FORGOTTEN_S` without any."""

    __slots__ = ("at_s", "ms_per_token", "samples")

    def __init__(self, ms_per_token: float, samples: float, at_s: float) -> None:
        self.ms_per_token = ms_per_token
        self.samples = samples
        self.at_s = at_s

    def sure(self, now: float) -> float:
        """Return how many samples it still counts for."""
        return self.samples * math.pow(0.5, max(0.0, now - self.at_s) / _FORGOTTEN_S)

    def fold(self, sample: float, now: float) -> None:
        """Go a step towards a sample, not beyond it: large ones first, then smaller ones."""
        samples = self.sure(now)
        step = max(_LEAST_STEP, _FIRST_STEP / (1.0 + samples / _FLEET_SAMPLES))
        if sample > self.ms_per_token:
            risen = self.ms_per_token * math.exp(2.0 * step * _QUANTILE)
            self.ms_per_token = min(risen, sample)
        else:
            fallen = self.ms_per_token * math.exp(-2.0 * step * (1.0 - _QUANTILE))
            self.ms_per_token = max(fallen, sample)
        self.samples = min(samples + 1.0, _MOST_SAMPLES)
        self.at_s = now


_Key = tuple[WorkerId, int]


class FetchTimes:
    """Time to bring a token's KV cache to a worker's device, by where it lies: a tier of the
    worker's own, or `PEER`.

    Before anything is seen, a block costs what its tier's weight leaves: `1 - weight` of computing
    it. From then on the lower third of the samples counts, since whatever else happens there makes
    a first token later and hardly anything makes it sooner; one sample moves the belief by a
    bounded factor. A worker is believed to be as the fleet is as far as it was not seen itself, and
    what is old is forgotten, so what was slow once is tried again. What was looked for in vain was
    computed instead, and teaches that, too: the time learned is the one to expect, failures
    included. `fixed` tiers keep their weight.
    """

    def __init__(
        self, weights: Sequence[float] = DEFAULT_WEIGHTS, *, fixed: Collection[int] = ()
    ) -> None:
        weights = (*weights[:PEER], *([0.0] * (PEER - len(weights))), PRIOR_WEIGHT)
        self._shares = [1.0 - weight for weight in weights]
        self._fixed = frozenset(fixed)
        self._own: dict[_Key, _Belief] = {}
        self._received: dict[str, dict[_Key, _Belief]] = {}
        self._updates: dict[_Key, None] = {}
        self.samples = 0

    def ms_per_token(self, worker: WorkerId, place: int, ms_to_compute: float, now: float) -> float:
        """Return the time for each token, ms; `ms_to_compute` one at that worker takes."""
        prior = self._shares[place] * ms_to_compute
        if place in self._fixed:
            return prior
        fleet = self._pooled((_EVERYBODY, place), _Belief(prior, 1.0, now), now)
        return self._pooled((worker, place), _Belief(fleet, _FLEET_SAMPLES, now), now)

    def ms(
        self, worker: WorkerId, parts: Mapping[int, int], ms_to_compute: float, now: float
    ) -> float:
        """Return the time to bring so many tokens from each place, one after the other, ms."""
        return sum(
            self.ms_per_token(worker, place, ms_to_compute, now) * tokens
            for place, tokens in parts.items()
        )

    def learn(
        self,
        worker: WorkerId,
        parts: Mapping[int, int],
        ms: float,
        ms_to_compute: float,
        now: float,
    ) -> None:
        """Take that bringing `parts` took `ms`; of several places each gets its expected part."""
        expected = self.ms(worker, parts, ms_to_compute, now)
        if sum(parts.values()) < MIN_SAMPLE_TOKENS or expected <= 0.0 or not math.isfinite(ms):
            return
        self.samples += 1
        for place, tokens in parts.items():
            if place in self._fixed or tokens <= 0:
                continue
            before = self.ms_per_token(worker, place, ms_to_compute, now)
            sample = min(max(before * ms / expected, _LEAST_MS_PER_TOKEN), _MOST_MS_PER_TOKEN)
            for key in ((worker, place), (_EVERYBODY, place)):
                own = self._own.get(key)
                if own is None:
                    own = self._own[key] = _Belief(before, 0.0, now)
                own.fold(sample, now)
            self._updates.pop((worker, place), None)
            self._updates[worker, place] = None

    def publish(self, now: float) -> FetchRows:
        """Return what was learned here last, for other replicas, and what of the whole fleet."""
        while len(self._updates) > MOST_TOLD:
            del self._updates[next(iter(self._updates))]
        fleet = [(_EVERYBODY, place) for place in range(PLACES)]
        return tuple(
            FetchRow(key[0], key[1], own.ms_per_token, own.sure(now))
            for key in (*fleet, *self._updates)
            if (own := self._own.get(key)) is not None
        )

    def receive(self, replica: str, rows: Sequence[FetchRow], now: float) -> None:
        """Take what another replica has seen, in place of what it told of the same before.

        Rows that cannot be are left out: of an unknown place, or numbers that no time shows.
        """
        if not rows:
            return
        received = self._received.setdefault(replica, {})
        for row in rows:
            sane = _LEAST_MS_PER_TOKEN <= row.ms_per_token <= _MOST_MS_PER_TOKEN
            if sane and row.samples > 0.0 and 0 < row.place < PLACES:
                key = (WorkerId(row.worker), row.place)
                received.pop(key, None)
                received[key] = _Belief(row.ms_per_token, min(row.samples, _MOST_SAMPLES), now)
        while len(received) > MOST_HEARD:
            del received[next(iter(received))]

    def exchange(self, reported: Mapping[str, FetchRows], now: float) -> FetchRows:
        """Hear what each of the other replicas told last, forget those that are not among them, and
        return what to tell them.
        """
        for gone in self._received.keys() - reported.keys():
            del self._received[gone]
        for replica, rows in reported.items():
            self.receive(replica, rows, now)
        return self.publish(now)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget a worker; the fleet remembers what it showed."""
        for place in range(PLACES):
            key = (worker, place)
            self._own.pop(key, None)
            self._updates.pop(key, None)
            for received in self._received.values():
                received.pop(key, None)

    def report(self, worker: WorkerId, place: int, ms_to_compute: float, now: float) -> FetchReport:
        """Return what is believed of a worker and place, for people."""
        return FetchReport(
            ms_per_token=self.ms_per_token(worker, place, ms_to_compute, now),
            samples=sum(one.sure(now) for one in self._seen_of((worker, place))),
        )

    def _pooled(self, key: _Key, prior: _Belief, now: float) -> float:
        """Return the mean of what anybody believes of `key` and of `prior`, by their samples."""
        total = weights = 0.0
        for one in (prior, *self._seen_of(key)):
            sure = one.sure(now)
            total, weights = total + sure * one.ms_per_token, weights + sure
        return total / weights

    def _seen_of(self, key: _Key) -> list[_Belief]:
        own = self._own.get(key)
        reported = [received[key] for received in self._received.values() if key in received]
        return reported if own is None else [own, *reported]
