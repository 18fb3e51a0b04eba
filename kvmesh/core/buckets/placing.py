"""Which of the buckets that could take a request gets it: its conversation's, else by a policy."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import xxhash

from kvmesh.core.buckets.beginnings import NO_KEYS, PREFIX_CHARS, Beginning
from kvmesh.core.buckets.bucket_cost import BucketCost, bucket_candidate
from kvmesh.core.buckets.conversations import Conversations, find_beginnings
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad, PrefixSpill
from kvmesh.core.buckets.turns import Turns

BucketPolicy = Literal["round-robin", "prefix-hash", "prefix-spill", "least-loaded"]

NEW_SHARE: Final = 0.5
"""Where a bucket holds less of a prompt, e.g. a line that all prompts begin with, turns are taken:
routers draw the same line among their workers (`native/decide/choose.c`).
"""

KEEPS_BY_HASH: Final = frozenset({"round-robin", "prefix-hash"})
"""Policies that need to remember nothing where nothing is shared."""


class RouterReplica(msgspec.Struct, frozen=True):
    """One router replica as its last heartbeat described it. No `models`: it serves any."""

    name: str
    bucket: str
    url: str
    models: tuple[str, ...] = ()
    active_requests: int = 0
    heat: BucketHeat = BucketHeat()
    workers: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()


Serving = Mapping[str, Sequence[RouterReplica]]
"""The usable replicas, at least one, of each bucket that could take a request; sorted by bucket."""


def rendezvous(names: Sequence[str], key: bytes) -> str:
    """Return the name with the highest hash for `key`: adding or removing one moves only its own.

    Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous".
    """
    if len(names) == 1:
        return names[0]
    seed = xxhash.xxh3_64_intdigest(key)
    return max(names, key=lambda name: (xxhash.xxh3_64_intdigest(name.encode(), seed), name))


class Placing:
    """Keeps sessions and conversations in their buckets, and places those that begin.

    A session goes where it is, under all policies; a conversation under all but prefix-hash, which
    gives it the same bucket anyway, and prefix-spill, which counts what leaving costs.
    Where `HomeOptions.shared` is False, round-robin and prefix-hash go by rendezvous hash of the
    session or the conversation, so that meta-routers that cannot hear of each other agree.
    With a `BucketCost` for a policy, those that begin go to the cheapest; in turn among equals, and
    where a formula of one's own fails.
    """

    def __init__(self, policy: BucketPolicy | BucketCost, options: HomeOptions) -> None:
        self.conversations = Conversations(options)
        self.spill = PrefixSpill()
        self.turns = Turns()
        self._cost = policy if isinstance(policy, BucketCost) else None
        self._policy: BucketPolicy = "round-robin" if isinstance(policy, BucketCost) else policy
        self._by_hash = not options.shared and policy in KEEPS_BY_HASH
        self._remembers = not self._by_hash and policy != "prefix-hash"
        self._weighed: Serving = {}
        self._sizes: dict[str, float] = {}
        self._asked: BucketRequest | None = None
        self._begun: list[Beginning] = []

    def place(
        self, request: BucketRequest, serving: Serving, sent: Mapping[str, int], now: float
    ) -> tuple[str, str]:
        """Return the bucket and why; remember it. `sent` counts requests by replica since its
        last report.
        """
        if request.sessions and not self._by_hash:
            found = self.conversations.find_session(request.sessions, now)
            if bucket := _newest(found, serving):
                self.note(request, bucket, now)
                return bucket, "session"
        known: tuple[str, ...] = ()
        if self._remembers:
            known = self.conversations.find(request.keys, now, passes=not request.asks)
        why: str = self._policy
        if self._policy == "prefix-spill":
            bucket = self._spill(request, serving, known, now)
        elif known and (bucket := _newest(known, serving)):
            why = "conversation"
        elif self._cost and (bucket := self._cheapest(self._cost, request, serving, sent, now)):
            why = self._cost.name
        else:
            bucket = self._begin(request, serving, sent, now)
        self._note(request, bucket, known, now)
        return bucket, why

    def note(self, request: BucketRequest, bucket: str, now: float) -> None:
        """Remember where a request goes that was not placed by policy."""
        root = request.keys.root
        known = self.conversations.homes.find(root.key, now) if root is not None else ()
        self._note(request, bucket, known, now)

    def _note(self, request: BucketRequest, bucket: str, known: Sequence[str], now: float) -> None:
        if self._by_hash or request.asks:
            return
        for session in request.sessions:
            self.conversations.homes.bind(session, bucket, now)
        if self._remembers and _is_seen(request):
            at_home = bucket in known
            beginnings = [] if at_home else self._beginnings(request)
            self.conversations.note(request.keys, beginnings, bucket, now)

    def _cheapest(
        self,
        cost: BucketCost,
        request: BucketRequest,
        serving: Serving,
        sent: Mapping[str, int],
        now: float,
    ) -> str:
        """Return the bucket with the lowest cost for a new conversation; "" where no cost is
        known.
        """
        beginnings = self._beginnings(request)
        chars = request.prompt_chars
        known = self._known_chars(beginnings, chars, serving, now)
        cheapest = cost.cheapest(
            [
                bucket_candidate(name, _heat(members), _load(members, sent), chars, known[name])
                for name, members in serving.items()
            ]
        )
        if not cheapest:
            return ""
        weights = self._weights(serving)
        bucket = self.turns.choose((), {name: weights[name] for name in cheapest}, now)
        if not request.asks:
            self.turns.take(bucket, now, in_turn=True)
        return bucket

    def _known_chars(
        self, beginnings: Sequence[Beginning], chars: int, serving: Serving, now: float
    ) -> dict[str, int]:
        """Return how much of a prompt of `chars` each bucket got before."""
        known = dict.fromkeys(serving, 0)
        for depth, one in enumerate(beginnings, 1):
            # Who got the longest got all of it, as far as is known.
            reach = max(one.chars, chars) if depth == len(beginnings) else one.chars
            got = self.conversations.homes.find(one.key, now)
            known |= dict.fromkeys((name for name in got if name in known), reach)
        return known

    def _begin(
        self, request: BucketRequest, serving: Serving, sent: Mapping[str, int], now: float
    ) -> str:
        """Return the bucket of a conversation that begins."""
        names = list(serving)
        if self._by_hash and (key := _hash_key(request, self._policy)):
            return rendezvous(names, key)
        if self._policy == "prefix-hash":
            return rendezvous(names, _opening(request))
        if self._policy == "least-loaded":
            loads = {name: _load(members, sent) for name, members in serving.items()}
            return min(names, key=lambda name: (loads[name], name))
        weights = self._weights(serving)
        homes: tuple[str, ...] = ()
        if _is_seen(request):
            beginnings = self._beginnings(request)
            worth = [one for one in beginnings if one.chars >= NEW_SHARE * request.prompt_chars]
            homes = self.conversations.find_beginning(worth, now)
        bucket = self.turns.choose(homes, weights, now)
        if not request.asks:
            self.turns.take(bucket, now, in_turn=not any(name in serving for name in homes))
        return bucket

    def _beginnings(self, request: BucketRequest) -> list[Beginning]:
        """Return what of its prompt others may share. O(1) for the same request as before."""
        if request is not self._asked:
            self._asked = request
            self._begun = find_beginnings(request.keys, request.prompt_start)
        return self._begun

    def _weights(self, serving: Serving) -> Mapping[str, float]:
        """Return the size of each bucket. O(1) for the same object as before."""
        if serving is not self._weighed:
            self._weighed, self._sizes = serving, _weights(serving)
        return self._sizes

    def _spill(
        self, request: BucketRequest, serving: Serving, homes: Sequence[str], now: float
    ) -> str:
        chars = request.prompt_chars
        beginnings = self._beginnings(request)
        known = self._known_chars(beginnings, chars, serving, now)
        # Of equal homes the newest is nearest.
        known |= dict.fromkeys((name for name in homes if name in known), max(0, chars - 1))
        if newest := _newest(homes, serving):
            known[newest] = chars
        most = max(known.values())
        # Of those that hold a part of it each prompt has its own, else each family.
        key = beginnings[-1].key if 0 < most < chars else int(request.family(), 16)
        if most < min(PREFIX_CHARS, chars):
            # What is cached is too little to crowd one bucket for it.
            even = self.turns.not_ahead(self._weights(serving), now)
            known = {name: known[name] for name in even}
        heats = {name: _heat(members) for name, members in serving.items()}
        bucket = self.spill.choose(known, chars, heats, key)
        if not request.asks:
            self.spill.count(bucket, max(0, chars - known[bucket]), heats[bucket])
            if not homes:
                self.turns.take(bucket, now, in_turn=False)
        return bucket


def _is_seen(request: BucketRequest) -> bool:
    """Return whether anything is known of a request's prompt."""
    return request.keys is not NO_KEYS or bool(request.prompt_start)


def _newest(homes: Sequence[str], serving: Serving) -> str:
    """Return the last of `homes` that could take a request; "" for none."""
    return next((name for name in reversed(homes) if name in serving), "")


def _opening(request: BucketRequest) -> bytes:
    opening = request.prompt_start if request.opening is None else request.opening
    return opening[:PREFIX_CHARS].encode(errors="surrogatepass")


def _hash_key(request: BucketRequest, policy: BucketPolicy) -> bytes:
    """Return what all requests of a session, or else of a conversation, have in common; b"" where
    nothing is known of it.
    """
    if request.sessions:
        return b"%x" % request.sessions[-1]
    if policy == "round-robin" and request.keys.root is not None:
        return b"%x" % request.keys.root.key
    return _opening(request)


def _weights(serving: Serving) -> dict[str, float]:
    """Return the size of each bucket: its workers, where all tell them."""
    workers = {name: max(len(one.workers) for one in many) for name, many in serving.items()}
    all_known = all(workers.values())
    return {name: float(count) if all_known else 1.0 for name, count in workers.items()}


def _load(members: Sequence[RouterReplica], sent: Mapping[str, int]) -> int:
    return sum(one.active_requests + sent[one.name] for one in members)


def _heat(members: Sequence[RouterReplica]) -> BucketHeat:
    """Return the largest heat that a replica of the bucket reports."""
    return max((one.heat for one in members), key=lambda heat: heat.backlog_ms)


def bucket_load(members: Sequence[RouterReplica]) -> BucketLoad:
    """Return a bucket's load by its usable replicas, and the models that any of them serves."""
    models = sorted({model for one in members for model in one.models})
    anything = any(not one.models for one in members)
    return BucketLoad(() if anything else tuple(models), _heat(members))
