"""What the meta-router knows of all router replicas, and whom it sends a request to."""

from collections.abc import Collection, Iterable

import msgspec

from kvmesh.actors.kernel import Effect, Log, Message, Wake
from kvmesh.actors.member_messages import Answered
from kvmesh.actors.messages import AllReported, BusMessage, RouterHeartbeat, Started, Tick
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.room import Room
from kvmesh.actors.wire import Subjects, decode, last_token
from kvmesh.bounds import shown
from kvmesh.core.buckets.bucket_cost import BucketCost
from kvmesh.core.buckets.buckets import BucketTable
from kvmesh.core.buckets.homes import HomeOptions, Homes
from kvmesh.core.buckets.placing import BucketPolicy, RouterReplica
from kvmesh.core.buckets.rules import BucketRule
from kvmesh.core.members.health import Answer
from kvmesh.core.members.link_health import LinkHealth
from kvmesh.core.members.membership import Change, ChangeKind, Membership, MemberView
from kvmesh.core.members.outcomes import SERVED, Attempt
from kvmesh.core.members.silent_members import GIVEN_UP, SilentMembers
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.errors import CodecError

CHECK_S = 0.25

MOST_EARLY = 4096
MOST_EARLY_BYTES = 64 << 20
"""Replicas whose heartbeats are kept while a meta-router only listens, and bytes of them."""

MOST_REPLICAS = 4096
"""Replicas of all buckets that requests may go to."""


class MetaRouterStatistics(msgspec.Struct, frozen=True):
    """Heartbeats taken, dropped as garbage, for their URL, for lack of room (`crowded`); replicas,
    and beginnings and sessions whose bucket is known now; requests by what chose their bucket.
    """

    heartbeats: int
    garbage: int
    refused: int
    crowded: int
    replicas: int
    homes: int
    placed: dict[str, int]


class MetaRouter:
    """Keeps the replicas of every bucket as their heartbeats and failures say.

    `route` is called directly for each request; `note` and `began` tell how it went, so that a
    dead replica is left out at the first failure, long before its heartbeats are missed. One that
    is not heard is asked (`silent`), if somebody does, and stays while it is ready.
    While it is `listening` nobody gets a request, until `AllReported`: a conversation whose bucket
    is only not heard of yet must not move. For `DEAD_AFTER_S` after that, a bucket or model that is
    not known may only not be heard of yet: that is no 404, the request may wait.
    """

    def __init__(
        self,
        namespace: str,
        rules: Collection[BucketRule] = (),
        policy: BucketPolicy | BucketCost = "round-robin",
        *,
        guard: UrlGuard | None = None,
        name: str = "meta-router",
        homes: HomeOptions | None = None,
    ) -> None:
        self.name = name
        membership = Membership(backoff_s=0.5, max_backoff_s=5.0)
        self.table = BucketTable(membership, list(rules), policy, homes)
        self.listening = False
        self._early: dict[str, bytes] = {}
        self._early_bytes = 0
        self.guard = guard or UrlGuard()
        self.link_health = LinkHealth(self.table.membership)
        self._namespace = namespace
        self._heartbeats = 0
        self._beats: dict[str, RouterHeartbeat] = {}
        self._unheard: set[str] = set()
        self.silent = SilentMembers(self.table.membership, self._beats.get)
        self._garbage = Refusals()
        self._room = Room(membership, MOST_REPLICAS, "replicas", "rotate a router's key")

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case BusMessage(subject, data):
                if not self.listening:
                    return self._on_bus(subject, data, now)
                return self._keep(subject, data)
            case AllReported():
                return self._on_all_reported(now)
            case Tick() | Started():
                self.link_health.check(now)
                self.table.settled = self.link_health.settled and not self.listening
                return (*self._expire(now), Wake(CHECK_S, Tick("check")))
            case Answered(replica, answer):
                return self._on_answered(replica, answer, now)
            case _:
                return ()

    @property
    def homes(self) -> Homes:
        """Return where conversations and sessions are at home."""
        return self.table.placing.conversations.homes

    def add_static(self, bucket: str, url: str, now: float) -> str:
        """Enter a replica from the configuration, return its name: it needs no heartbeats.

        Requests may go there at once; `ready` counts it once it `answered`.
        """
        name = f"{bucket}/{url}"
        self.table.membership.add(name, now)
        self.table.set_replica(RouterReplica(name=name, bucket=bucket, url=url))
        self._unheard.add(name)
        return name

    def answered(self, replica: str) -> None:
        """Note that a replica from the configuration is there and takes requests."""
        self._unheard.discard(replica)

    @property
    def unheard(self) -> frozenset[str]:
        """Return the replicas from the configuration that never answered."""
        return frozenset(self._unheard)

    def serves(self, name: str, models: tuple[str, ...]) -> None:
        """Note what a replica serves that sends no heartbeats."""
        for replica in self.table.replicas():
            if replica.name == name:
                self.table.set_replica(msgspec.structs.replace(replica, models=models))

    def awaits_replicas(self) -> bool:
        """Return whether a replica may come that a request could go to: some were there, or may
        only not be heard of yet.
        """
        return self.table.met_any or self.listening or not self.table.settled

    def note(self, replica: str, attempt: Attempt, now: float) -> None:
        """Take what became of a request at a replica."""
        self.table.membership.note(replica, attempt, now)

    def served(self, replica: str, now: float) -> None:
        """Do as `note` of a request that was served, at nearly every end."""
        if not self.table.membership.health.served(replica, now):
            self.note(replica, SERVED, now)

    def began(self, replica: str, now: float) -> None:
        """Take that an answer of a replica begins."""
        self._unheard.discard(replica)
        self.table.membership.health.began(replica, now)

    def url(self, replica: str) -> str:
        """Return where a replica is; "" for one that is gone."""
        return next((one.url for one in self.table.replicas() if one.name == replica), "")

    def ready(self, now: float) -> bool:
        """Return whether a replica that was heard can take a request."""
        return any(one not in self._unheard for one in self.table.membership.usable(now))

    def left_out(self) -> list[tuple[str, str]]:
        """Return (worker, bucket) of those that replicas give no requests, sorted."""
        replicas = self.table.replicas()
        return sorted({(worker, one.bucket) for one in replicas for worker in one.left_out})

    def given_up(self, now: float) -> list[tuple[str, str]]:
        """Return the replicas that were lost of late, and in words why."""
        return [(name, GIVEN_UP) for name in self.silent.lost(now)]

    def replicas(self, now: float) -> list[MemberView]:
        """Return every replica for people, named `bucket/router`."""
        return self.table.membership.view(now)

    def statistics(self) -> MetaRouterStatistics:
        """Return the present counts."""
        return MetaRouterStatistics(
            heartbeats=self._heartbeats,
            garbage=self._garbage.count,
            refused=self.guard.refusals,
            crowded=self._room.refused,
            replicas=len(self.table.membership),
            homes=len(self.homes),
            placed=dict(self.table.reasons),
        )

    def warnings(self, now: float) -> tuple[str, ...]:
        """Return that replicas are turned down for lack of room, in a line, while that is so."""
        return self._room.warnings(now)

    def _keep(self, subject: str, data: bytes) -> Iterable[Effect]:
        """Keep a heartbeat that comes while this meta-router only listens, if there is room."""
        early = self._early
        more = len(data) - len(early.get(subject, b""))
        crowded = subject not in early and len(early) >= MOST_EARLY
        if not crowded and self._early_bytes + more <= MOST_EARLY_BYTES:
            self._early_bytes += more
            early[subject] = data
        return ()

    def _on_all_reported(self, now: float) -> Iterable[Effect]:
        """Take the heartbeats that came while listening, the newest of each replica."""
        self.listening = False
        self.table.settled = False
        self.link_health.begin(now)
        early, self._early, self._early_bytes = self._early, {}, 0
        return [one for beat in early.items() for one in self._on_bus(*beat, now)]

    def _on_bus(self, subject: str, data: bytes, now: float) -> Iterable[Effect]:
        """Take a replica's heartbeat; one that speaks for another than its subject is garbage."""
        try:
            beat = decode(data, RouterHeartbeat)
        except CodecError as error:
            return self._garbage.note(subject, error, now)
        return self._on_beat(subject, beat, now)

    def _on_beat(self, subject: str, beat: RouterHeartbeat, now: float) -> Iterable[Effect]:
        if subject != Subjects(self._namespace, beat.bucket).routers(last_token(subject)) or (
            beat.router != last_token(subject)
        ):
            reason = f"a heartbeat of {shown(beat.router)} in {shown(beat.bucket)}"
            return self._garbage.note(subject, reason, now)
        self._heartbeats += 1
        self.link_health.note_alive(now)
        if beat.follower:
            return ()
        name = f"{beat.bucket}/{beat.router}"
        if refusal := self.guard.judge(name, beat.url, now):
            fields = {"member": name, "reason": refusal.reason}
            return (Log("error", "replica refused", fields),) if refusal.new else ()
        if not self._room.has_room_for(name):
            return self._room.refuse(name, now)
        change = self.table.membership.observe(
            name, beat.epoch, now, ready=beat.ready, draining=beat.draining
        )
        if change is None and beat.epoch < (self.table.membership.epoch(name) or 0):
            return ()
        self.silent.note_alive(name)
        self._take(name, beat)
        return _log([] if change is None else [change])

    def _take(self, name: str, beat: RouterHeartbeat) -> None:
        self._beats[name] = beat
        self.table.set_replica(
            RouterReplica(
                name=name,
                bucket=beat.bucket,
                url=beat.url,
                models=beat.models,
                active_requests=beat.active_requests,
                heat=beat.heat,
                workers=frozenset(beat.workers),
                left_out=beat.left_out,
            )
        )

    def _expire(self, now: float) -> Iterable[Effect]:
        changes = self.table.membership.expire(now)
        for change in changes:
            if change.kind is ChangeKind.LEFT:
                self.table.remove_replica(change.member)
                self.silent.lose(change.member, self._beats.pop(change.member), now)
        return _log(changes)

    def _on_answered(self, replica: str, answer: Answer, now: float) -> Iterable[Effect]:
        """Keep a silent replica that is ready, give up one that is not there; see who is back."""
        beat = self.silent.answered(replica, answer, now)
        if beat is None or not self._room.has_room_for(replica):
            return self._expire(now)
        change = self.table.membership.readmit(replica, beat.epoch, now)
        self._take(replica, beat)
        return (*_log([change]), *self._expire(now))


def _log(changes: Iterable[Change]) -> tuple[Effect, ...]:
    return tuple(
        Log(
            "warning" if change.kind is ChangeKind.LEFT else "info",
            "replica changed",
            {"member": change.member, "change": change.kind.value, "epoch": change.epoch},
        )
        for change in changes
    )
