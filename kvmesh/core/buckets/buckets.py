"""Which bucket a request goes to, and which ready replica of it: all a meta-router decides."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from kvmesh.bounds import shown
from kvmesh.core.buckets.bucket_cost import BucketCost
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.buckets.placing import (
    BucketPolicy,
    Placing,
    RouterReplica,
    Serving,
    bucket_load,
)
from kvmesh.core.buckets.rules import BucketRequest, BucketRule
from kvmesh.core.buckets.spill import BucketLoad
from kvmesh.core.buckets.workerless import Workerless
from kvmesh.core.cost.selection import next_in_turn
from kvmesh.core.members.known_names import KnownNames
from kvmesh.core.members.membership import Membership
from kvmesh.errors import MODEL_NOT_FOUND, NoWorkerError, RequestError

MODELS_REMEMBERED: Final = 1024
"""Models and buckets once served: one that is away for a while is no unknown one."""


_TOLD: Final = frozenset({"named", "rule"})


class BucketRoute(msgspec.Struct, frozen=True):
    """Where a request goes. `why`: named, rule, session, conversation, or the policy's name."""

    bucket: str
    replica: RouterReplica
    why: str


class _Reachable:
    """The replicas that may be given requests, until one comes, goes or tells something.

    `members` and `names` by bucket, sorted; `usable` is what they were made of.
    """

    __slots__ = ("_alike", "_loads", "_serving", "everyone", "members", "names", "usable")

    def __init__(self, usable: tuple[str, ...], everyone: Sequence[RouterReplica]) -> None:
        self.usable = usable
        self.everyone = everyone
        self.members = _by_bucket(everyone)
        self.names = {name: [one.name for one in many] for name, many in self.members.items()}
        self._alike = not any(one.models for one in everyone)
        self._serving: dict[str, Serving] = {}
        self._loads: tuple[BucketLoad, ...] | None = None

    def loads(self) -> tuple[BucketLoad, ...]:
        """Return how busy each bucket is, and what it serves."""
        if self._loads is None:
            self._loads = tuple(bucket_load(many) for many in self.members.values())
        return self._loads

    def serving(self, model: str) -> Serving:
        """Return the buckets that serve a model, each with those of its replicas that do."""
        if self._alike or not model:
            return self.members
        found = self._serving.get(model)
        if found is None:
            if len(self._serving) >= MODELS_REMEMBERED:
                self._serving.clear()
            serves = [one for one in self.everyone if not one.models or model in one.models]
            found = self._serving[model] = _by_bucket(serves)
        return found


def _by_bucket(replicas: Sequence[RouterReplica]) -> dict[str, list[RouterReplica]]:
    found: dict[str, list[RouterReplica]] = {}
    for one in replicas:
        found.setdefault(one.bucket, []).append(one)
    return dict(sorted(found.items()))


class BucketTable:
    """The replicas of every bucket and the turns. Feed `membership` with the same names.

    Bucket: the one the client named, else that of the workers it named, else the first matching
    rule's, else that of its session or conversation, else by `policy`, the last two among the
    buckets with a usable replica that serves the model.
    Replica: round robin over the bucket's usable ones that were not tried yet, without those that
    said that they have no worker (`workerless`). `met_any`: some
    replica has been known, though perhaps none is now; while it is not `settled` who is unknown may
    only not be heard of yet. `reasons` counts requests by `why`.
    """

    def __init__(
        self,
        membership: Membership,
        rules: Sequence[BucketRule] = (),
        policy: BucketPolicy | BucketCost = "round-robin",
        homes: HomeOptions | None = None,
    ) -> None:
        self.membership = membership
        self.placing = Placing(policy, homes or HomeOptions())
        self.reasons = Counter[str]()
        self.workerless = Workerless()
        self._rules = tuple(rules)
        self._replicas: dict[str, RouterReplica] = {}
        self._sent: dict[str, int] = {}
        self.met_any = False
        self.settled = True
        self._served = KnownNames(MODELS_REMEMBERED)
        self._received = KnownNames(MODELS_REMEMBERED)
        self._last_replica: dict[str, str] = {}
        self._reachable: _Reachable | None = None
        self._buckets: tuple[str, ...] | None = None

    def set_replica(self, replica: RouterReplica) -> None:
        """Note a replica, or its newest figures."""
        self.met_any = True
        self._replicas[replica.name] = replica
        self._reachable = self._buckets = None
        self._sent[replica.name] = 0
        self._served.add(replica.models)
        self._received.add((replica.bucket,))
        self.placing.spill.note_alive(replica.bucket)

    def replicas(self) -> list[RouterReplica]:
        """Return every replica, usable or not, sorted by name."""
        return [self._replicas[name] for name in sorted(self._replicas)]

    def remove_replica(self, name: str) -> None:
        """Forget a replica that left."""
        self._replicas.pop(name, None)
        self._reachable = self._buckets = None
        self._sent.pop(name, None)
        names = frozenset(self.buckets())
        self.placing.turns.forget_all_but(names)
        self.placing.spill.forget_all_but(names)
        last = self._last_replica
        self._last_replica = {bucket: one for bucket, one in last.items() if bucket in names}

    def buckets(self) -> tuple[str, ...]:
        """Return every bucket that has a replica, usable or not, sorted."""
        found = self._buckets
        if found is None:
            found = self._buckets = tuple(sorted({one.bucket for one in self._replicas.values()}))
        return found

    def models(self) -> tuple[str, ...]:
        """Return every model some replica names, sorted."""
        return tuple(sorted({model for one in self._replicas.values() for model in one.models}))

    def ready(self, bucket: str, now: float) -> list[RouterReplica]:
        """Return the bucket's usable replicas, sorted by name."""
        return list(self._reach(now).members.get(bucket, ()))

    def loads(self, now: float) -> tuple[BucketLoad, ...]:
        """Return how busy the buckets with usable replicas are. O(1) until something changes."""
        return self._reach(now).loads()

    def takes(self, request: BucketRequest, now: float, tried: Collection[str] = ()) -> bool:
        """Return whether a usable replica serves a request's model, was not tried, and would not
        refuse it.
        """
        left = self._left(request, self._reach(now).everyone, tried, now)
        return any(not one.models or request.model in one.models for one in left)

    def route(
        self,
        request: BucketRequest,
        now: float,
        *,
        tried: Collection[str] = (),
        last: BucketRoute | None = None,
    ) -> BucketRoute:
        """Choose bucket and replica and take the turn. `tried` replicas already failed it.

        After `last` the request stays in its bucket for as long as that has usable replicas; then
        one that nothing binds goes to another.

        Raises `RequestError` (404) for an unknown bucket or model, `NoWorkerError` when nobody
        who could take it is usable.
        """
        reach, pauses = self._reach(now), self.workerless.pauses
        if tried or pauses:
            reach = _Reachable((), self._left(request, reach.everyone, tried, now))
        bucket, why = self._bucket(request, reach, now, last)
        names = reach.names.get(bucket) or self._last_resort(bucket, now, tried)
        if not names:
            raise NoWorkerError(
                f"bucket {shown(bucket)} has no usable replica: {self._state(request, bucket, now)}"
            )
        name = next_in_turn(names, self._last_replica.get(bucket, ""))
        self._last_replica[bucket] = name
        self._sent[name] += 1
        if not (tried or request.asks):
            self.reasons[why] += 1
            if why in _TOLD:
                self.placing.note(request, bucket, now)
        if (health := self.membership.health).out:
            health.chosen(name, now)
        if pauses:
            self.workerless.chosen(name, request.model, now)
        return BucketRoute(bucket, self._replicas[name], why)

    def _last_resort(self, bucket: str, now: float, tried: Collection[str]) -> list[str]:
        """Return the bucket's replicas that only failed requests speak against."""
        left = [self._replicas.get(name) for name in self.membership.last_resort(now)]
        return [one.name for one in left if one and one.bucket == bucket and one.name not in tried]

    def _reach(self, now: float) -> _Reachable:
        """Return who may be given requests now. O(1) until something changes."""
        usable, reach = self.membership.usable(now), self._reachable
        if reach is None or reach.usable is not usable:
            known = [self._replicas.get(name) for name in usable]
            self._reachable = reach = _Reachable(usable, [one for one in known if one])
        return reach

    def _left(
        self,
        request: BucketRequest,
        everyone: Sequence[RouterReplica],
        tried: Collection[str],
        now: float,
    ) -> list[RouterReplica]:
        """Return those that neither failed the request nor would refuse it."""
        model, refuses = request.model, self.workerless.refuses
        return [
            one for one in everyone if one.name not in tried and not refuses(one.name, model, now)
        ]

    def _bucket(
        self,
        request: BucketRequest,
        reach: _Reachable,
        now: float,
        last: BucketRoute | None,
    ) -> tuple[str, str]:
        if (request.bucket or request.workers) and (named := self._named(request, reach)):
            return named, "named"
        if self._rules and (ruled := self._ruled(request)):
            return self._known(ruled, "rule"), "rule"
        serving = reach.serving(request.model)
        if last is not None and (last.bucket in serving or not serving):
            return last.bucket, last.why
        if not serving:
            self._refuse(request)
        return self.placing.place(request, serving, self._sent, now)

    def _named(self, request: BucketRequest, reach: _Reachable) -> str:
        """Return the bucket the client named, else one of its workers', a usable one first."""
        if request.bucket:
            return self._known(request.bucket, "x-kvmesh-bucket")
        replicas = self._replicas.values()
        homes = {one.bucket for one in replicas if not one.workers.isdisjoint(request.workers)}
        alive = sorted(homes.intersection(reach.members))
        return (alive or sorted(homes) or [""])[0]

    def named(self, request: BucketRequest) -> str:
        """Return the bucket that the client or else a rule names; "" leaves it to the policy."""
        return request.bucket or self._ruled(request)

    def _ruled(self, request: BucketRequest) -> str:
        return next((rule.bucket for rule in self._rules if rule.matches(request)), "")

    def _known(self, bucket: str, place: str) -> str:
        known = self.buckets()
        if bucket not in known and bucket in self._received:
            raise NoWorkerError(f"{place}: bucket {shown(bucket)} has lost all its replicas")
        if bucket not in known and not (self.settled and (known or self._received)):
            raise NoWorkerError(f"{place}: no replica of bucket {shown(bucket)} was heard of yet")
        if bucket not in known:
            raise RequestError(
                f"{place}: bucket {shown(bucket)} is unknown;"
                f" known are {', '.join(known) or 'none'}",
                status=404,
                param="bucket",
            )
        return bucket

    def _refuse(self, request: BucketRequest) -> None:
        models = set(self.models())
        anything = any(not one.models for one in self._replicas.values())
        unheard = request.model and request.model not in self._served
        if unheard and models and not anything and self.settled:
            raise RequestError(
                f"the model {shown(request.model)} does not exist; served are"
                f" {', '.join(sorted(models))}",
                status=404,
                param="model",
                code=MODEL_NOT_FOUND,
            )
        raise NoWorkerError("no bucket has a usable replica; wait for a router to become ready")

    def _state(self, request: BucketRequest, bucket: str, now: float) -> str:
        names = sorted(name for name, one in self._replicas.items() if one.bucket == bucket)
        why = Counter(self._why_not(request, one, now) for one in names)
        return "; ".join(f"{count} of {len(names)}: {said}" for said, count in why.items())

    def _why_not(self, request: BucketRequest, replica: str, now: float) -> str:
        if why := self.membership.why_not(replica, now):
            return why
        lacks = self.workerless.refuses(replica, request.model, now)
        return "no worker there can take it" if lacks else "tried"
