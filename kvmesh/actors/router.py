"""What one router replica knows of its workers, for requests and for whoever asks."""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final, Literal

from msgspec import UNSET

from kvmesh.actors.kernel import Effect, Log, Message
from kvmesh.actors.messages import WorkerGone, WorkerHeartbeat, WorkerSeen
from kvmesh.bounds import MAX_FIGURE
from kvmesh.core.admission.sibling_counters import SharedLimits
from kvmesh.core.admission.usage_book import UsageBook
from kvmesh.core.admission.usage_limits import UsageLimits
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.buckets.spill import BucketHeat
from kvmesh.core.insight.rollout_state import NO_NEWS
from kvmesh.core.members.block_sizes import MOST_BLOCK_SIZE, MOST_SIZES, BlockSizes
from kvmesh.core.members.membership import DRAINING
from kvmesh.core.members.progress import Progress
from kvmesh.core.routing.disaggregation import PREFILL
from kvmesh.core.routing.kept_ids import KeptIds
from kvmesh.core.routing.scheduler import Scheduler

MOST_LEFT_OUT: Final = 64
"""Workers named to meta-routers, which only pass them on to people."""

_AGREE: Final = (
    "give every router and worker of the bucket the same --hash-secret-file, or none "
    "(seeds/hash.BUCKET.secret of kvmesh nats-accounts, hash.secret of kvmesh up)"
)

_FEWER_SIZES: Final = (
    f"routers follow {MOST_SIZES} block sizes of up to {MOST_BLOCK_SIZE} tokens in a bucket: start "
    "the engine with one that others have"
)


class Router:
    """Where workers are and what they serve. Told by the registry, read directly by requests.

    `heartbeats` are the last signs of life of those that are not gone.
    `located` are called when a worker joins, or says that it is elsewhere.
    `sizes` has the block size that this router counts in; a change is told to each of `resized`.
    `sizes.odd` are the workers of more block sizes than are followed, `strangers` those that hash
    with another secret (`secret_mark`): none of their blocks can ever match, which is worth an
    alarm.
    `adapters` are the models that are LoRA adapters somewhere: what they cache is nobody else's.
    `prefillers` are the workers that prefill for others, `wanting` those that want to be told of
    answers; `ids` are of what their engines keep, `progress` is what these show of being at work.
    `usage` accounts what its clients used, `limits` what they may use; None: nobody does.
    `admission` are the bounds in force where they were changed while it ran, `policy` likewise.
    `kept_prompts` is how many this replica keeps for workers that join.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        block_size: int | None,
        *,
        secret_mark: int = 0,
        name: str = "router",
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.sizes = BlockSizes(block_size)
        self.resized: list[Callable[[int], None]] = []
        self.located: list[Callable[[], None]] = []
        self.strangers: set[WorkerId] = set()
        self.secret_mark = secret_mark
        self.adapters: set[str] = set()
        self.prefillers: set[WorkerId] = set()
        self.wanting: set[WorkerId] = set()
        self.admission = SharedLimits()
        self.policy = NO_NEWS
        self.kept_prompts = 0
        self.heartbeats: dict[WorkerId, WorkerHeartbeat] = {}
        self.ids = KeptIds()
        self.usage: UsageBook | None = None
        self.limits: UsageLimits | None = None
        self.progress = Progress(scheduler.workers.membership.health.served_s)

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; all others than those named above are ignored."""
        match message:
            case WorkerSeen(heartbeat):
                return self._on_worker(heartbeat, now)
            case WorkerGone(worker):
                self.heartbeats.pop(worker, None)
                self.strangers.discard(worker)
                self.prefillers.discard(worker)
                self.wanting.discard(worker)
                self.progress.forget(worker)
                self.scheduler.remove_worker(worker)
                return self._settle("warning", changed=self.sizes.forget(worker))
            case _:
                return ()

    def models(self) -> tuple[str, ...]:
        """Return every model some worker serves, sorted."""
        return tuple(sorted({model for one in self.heartbeats.values() for model in one.models}))

    def heat(self, now: float) -> BucketHeat:
        """Return how busy the bucket is: its least busy worker's backlog. O(workers)."""
        scheduler = self.scheduler
        usable = scheduler.workers.everyone(now)
        if not usable:
            return BucketHeat()
        waits = [
            scheduler.sequences.loads(one).wait_ms(scheduler.speeds.ms_per_token(one), now)
            for one in usable
        ]
        fleet_ms = scheduler.speeds.fleet_ms_per_token
        return BucketHeat(min(*waits, MAX_FIGURE), min(fleet_ms, MAX_FIGURE), len(usable))

    def left_out(self, now: float) -> tuple[str, ...]:
        """Return workers that get nothing, `MOST_LEFT_OUT` at most, without those that leave."""
        membership = self.scheduler.workers.membership
        usable = frozenset(membership.usable(now))
        out = (one for one in membership.members() if one not in usable)
        sick = (one for one in out if membership.why_not(one, now) != DRAINING)
        return tuple(islice(sick, MOST_LEFT_OUT))

    def worker_at(self, url: str, failed: Collection[WorkerId]) -> WorkerId | None:
        """Return a worker at this URL that has not `failed`, None: there is none."""
        there = (name for name, beat in self.heartbeats.items() if beat.url == url)
        return next((name for name in there if name not in failed), None)

    def workers(self) -> tuple[WorkerHeartbeat, ...]:
        """Return the last heartbeat of every worker, sorted by name."""
        return tuple(one for _, one in sorted(self.heartbeats.items()))

    def _on_worker(self, heartbeat: WorkerHeartbeat, now: float) -> Iterable[Effect]:
        worker = heartbeat.worker
        before = self.heartbeats.get(worker)
        self.heartbeats[worker] = heartbeat
        self._note_progress(heartbeat, before, now)
        if before is None or before.url != heartbeat.url:
            for tell in self.located:
                tell()
        if before is not None and (before.epoch != heartbeat.epoch or not heartbeat.answering):
            self.scheduler.workers.adapters.restart(worker)
        if before is not None and _is_renewed(before, heartbeat):
            self.scheduler.overlaps.remove_worker(worker)
        (self.wanting.add if heartbeat.wants_answers else self.wanting.discard)(worker)
        if PREFILL in heartbeat.labels:
            self.prefillers.add(worker)
        else:
            self.prefillers.discard(worker)
        if heartbeat.adapters != (before.adapters if before else ()):
            self.adapters.clear()
            self.adapters.update(*(one.adapters for one in self.heartbeats.values()))
        return (*self._check_secret(heartbeat), *self._check_block_size(heartbeat))

    def _note_progress(
        self, heartbeat: WorkerHeartbeat, before: WorkerHeartbeat | None, now: float
    ) -> None:
        """Take what a heartbeat shows of its engine's progress; repeated figures show none."""
        worker, epoch, reading = heartbeat.worker, heartbeat.epoch, heartbeat.reading
        fresh = before is None or not reading or (epoch, reading) != (before.epoch, before.reading)
        if before is not None and (epoch, heartbeat.last_seq) != (before.epoch, before.last_seq):
            self.progress.shown(worker, now)
        if fresh:
            self.progress.report(worker, heartbeat.load.reading(), now)

    def _check_secret(self, heartbeat: WorkerHeartbeat) -> Iterable[Effect]:
        worker = heartbeat.worker
        if not heartbeat.events or heartbeat.secret_mark == self.secret_mark:
            self.strangers.discard(worker)
            return ()
        if worker in self.strangers:
            return ()
        self.strangers.add(worker)
        fields: dict[str, str | int | float | bool | None] = {
            "worker": worker,
            "worker_has_secret": heartbeat.secret_mark != 0,
            "router_has_secret": self.secret_mark != 0,
            "remedy": _AGREE,
        }
        return (Log("error", "hash secrets differ, no prefix can match", fields),)

    def unmatched(self) -> list[tuple[WorkerId, str]]:
        """Return the workers of which no block can ever match, and in words why and what to do."""
        sizes = [
            (worker, f"KV blocks have {size} tokens: {_FEWER_SIZES}")
            for worker, size in self.sizes.odd.items()
        ]
        remedy = f"{_AGREE}; until then it is routed to by what was sent there"
        return [*sizes, *((worker, f"hash secrets differ: {remedy}") for worker in self.strangers)]

    def _check_block_size(self, heartbeat: WorkerHeartbeat) -> Iterable[Effect]:
        worker, size = heartbeat.worker, heartbeat.block_size
        before, first = self.sizes.odd.get(worker), self.sizes.source == "default"
        changed = self.sizes.receive(worker, size, events=heartbeat.events)
        effects = self._settle("info" if first else "warning", changed=changed)
        if self.sizes.odd.get(worker) in (before, None):
            return effects
        fields: dict[str, str | int | float | bool | None] = {
            "worker": worker,
            "worker_block_size": size,
            "remedy": _FEWER_SIZES,
        }
        return (*effects, Log("error", "block size not followed, no prefix can match", fields))

    def _settle(self, level: Literal["info", "warning"], *, changed: bool) -> Iterable[Effect]:
        """Look for blocks of all sizes; tell everyone where the router's own `changed`."""
        if self.sizes.others != self.scheduler.overlaps.sizes:
            self.scheduler.look_for(self.sizes.others)
        if not changed:
            return ()
        before, size = self.scheduler.options.block_size, self.sizes.size
        for tell in self.resized:
            tell(size)
        fields: dict[str, str | int | float | bool | None] = {
            "block_size": size,
            "before": before,
            "others": ", ".join(map(str, self.sizes.others)),
        }
        return (Log(level, "block size taken from the workers", fields),)


def _is_renewed(before: WorkerHeartbeat, after: WorkerHeartbeat) -> bool:
    """Return whether an engine tells of other weights than before."""
    return UNSET not in {before.weights, after.weights} and before.weights != after.weights
