"""Messages between the outside and the actors. Each is an immutable struct."""

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.bounds import (
    Count,
    Epoch,
    Figure,
    Hash,
    MaybeName,
    Member,
    Members,
    Name,
    Names,
    Port,
    Reading,
    Sequence,
    Text,
    Tokens,
)
from kvmesh.core.admission.sibling_counters import SharedLimits
from kvmesh.core.blocks.events import WorkerId, WorkerName
from kvmesh.core.buckets.spill import BucketHeat
from kvmesh.core.engines.handshake import Connector
from kvmesh.core.engines.registry import connector_of, connectors
from kvmesh.core.insight.rollout_state import NO_NEWS, PolicyUpdate
from kvmesh.core.members.fetch_times import FetchRows
from kvmesh.core.members.progress import EngineReading
from kvmesh.core.members.worker_info import (
    NO_ADAPTERS,
    AdapterReport,
    LoadReport,
    Trust,
    as_count,
    as_share,
)
from kvmesh.formats import FIRST, FormatNumber, Formats, VersionText


class Appended(Message, frozen=True):
    """The journal stored the append with this `token` at `sequence`."""

    token: int
    sequence: int


class JournalRecord(Message, frozen=True):
    """One message read from the journal; `worker` is taken from its subject.

    `stored_s` is when it was stored, in this process's time; None when nobody knows.
    """

    sequence: int
    worker: WorkerId
    data: bytes
    stored_s: float | None = None


class JournalGap(Message, frozen=True):
    """Sequences `first..last` were purged before this replica read them."""

    first: int
    last: int


class JournalRecreated(Message, frozen=True):
    """The stream was deleted and remade; `created` names the new one."""

    created: str


class CaughtUp(Message, frozen=True):
    """Everything that was in the journal at start, up to `sequence`, has been applied."""

    sequence: int


class Tick(Message, frozen=True):
    """A timer of the actor's own; `kind` tells which."""

    kind: str = ""
    token: int = 0


class WorkerLoad(msgspec.Struct, frozen=True):
    """What an engine reports of itself. Blocks are KV blocks of `block_size` tokens.

    Of `cache_queried_tokens` prompt tokens since its start `cache_hit_tokens` were cached; both 0
    where it does not tell. It holds `adapter_slots` LoRA adapters ready at a time, `adapters` are
    those in use; both are left out where it does not tell. `computed_tokens` changes whenever it
    computes tokens; left out where it shows no such counter, as are `prompt_slots` and
    `slot_tokens`. The others are those of `LoadReport`.
    """

    running_requests: Reading = 0
    waiting_requests: Reading = 0
    used_blocks: Reading = 0
    total_blocks: Reading = 0
    waiting_tokens: Reading | None = None
    prefilled_tokens: Reading = 0
    prefill_busy_us: Reading = 0
    total_slots: Reading = 0
    prefix_hit_rate: Figure = 0.0
    cache_queried_tokens: Reading = 0
    cache_hit_tokens: Reading = 0
    adapter_slots: Reading | msgspec.UnsetType = msgspec.UNSET
    adapters: Names | msgspec.UnsetType = msgspec.UNSET
    computed_tokens: Reading | msgspec.UnsetType = msgspec.UNSET
    prompt_slots: Reading | msgspec.UnsetType = msgspec.UNSET
    slot_tokens: Reading | msgspec.UnsetType = msgspec.UNSET

    def reading(self) -> EngineReading:
        """Return what of the figures shows whether the engine makes progress."""
        computed = self.computed_tokens
        return EngineReading(
            computed=None if computed is msgspec.UNSET else computed,
            running=self.running_requests,
            waiting=self.waiting_requests,
            used_blocks=self.used_blocks,
        )

    def report(self) -> LoadReport:
        """Return the figures as the core takes them: each a `Count`, whatever was told."""
        waiting = self.waiting_tokens
        return LoadReport(
            running_requests=as_count(self.running_requests),
            waiting_requests=as_count(self.waiting_requests),
            used_blocks=as_count(self.used_blocks),
            total_blocks=as_count(self.total_blocks),
            waiting_tokens=None if waiting is None else as_count(waiting),
            prefilled_tokens=as_count(self.prefilled_tokens),
            prefill_busy_us=as_count(self.prefill_busy_us),
            total_slots=as_count(self.total_slots),
            prefix_hit_rate=as_share(self._hit_rate()),
            adapters=self._adapters(),
            prompt_slots=as_count(self.prompt_slots or 0),
            slot_tokens=as_count(self.slot_tokens or 0),
        )

    def _adapters(self) -> AdapterReport:
        if self.adapter_slots is msgspec.UNSET:
            return NO_ADAPTERS
        names = () if self.adapters is msgspec.UNSET else self.adapters
        return AdapterReport(as_count(self.adapter_slots), names)

    def _hit_rate(self) -> float:
        """Return what the engine tells, or what its two counts make."""
        queried = self.cache_queried_tokens
        return self.cache_hit_tokens / queried if queried > 0 else self.prefix_hit_rate

    @property
    def gpu_cache_usage_perc(self) -> float:
        """Return used / total, 0..1; 0 when the total is unknown."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0


class WorkerHeartbeat(Message, frozen=True):
    """A worker's sign of life, each second on `<ns>.hb.<bucket>.<worker>` as msgpack map.

    `last_seq` is the last event of `epoch` that the journal acknowledged, so a lost tail event
    shows. `url` is where requests go; `events` is False for a worker without KV events, `complete`
    while part of the engine's history is lost and overlap is counted too low. `labels` and `taints`
    are `WorkerInfo`'s, `secret_mark` `hashing`'s; `adapters` are those of `models` that are LoRA
    adapters, `bootstrap_port` is where a prefill worker meets others. `reading` counts the engine's
    reports of its load: with the same number `load` is old news; 0 is not counted. `health_path` is
    what to ask often; while the engine does not answer there `answering` is False, `draining` True
    for routers that know only that. `engine` names its kind where routers must know it
    (`needs_naming`), `connector` how it shares requests with others where that is not the kind's
    usual way, `unsalted` are paths at which it takes no `cache_salt`, "/" for all. `formats`
    are those it can write, `journal_format` is what its journal records have now. `incarnation` is
    drawn at random by each start of a sidecar, so that no clock has to tell two apart; 0: not said.
    While `catching_up` it reads what its engine published before, and what it holds is out of date.
    `engine_seq` is the engine's last batch that it read, if it can be asked for a checkpoint there.
    It `wants_answers` when `PromptServed` helps it to know again what it lost. `weights` is the
    version of its engine's weights: with another one nothing cached before is believed.
    """

    worker: WorkerName
    bucket: Name
    epoch: Epoch
    last_seq: Sequence
    url: Text
    models: Names
    block_size: Tokens
    load: WorkerLoad = WorkerLoad()
    events: bool = True
    dp_rank: Count | None = None
    draining: bool = False
    complete: bool = True
    secret_mark: Hash = 0
    labels: Names = ()
    taints: Names = ()
    adapters: Names = ()
    bootstrap_port: Port = 0
    reading: Sequence = 0
    health_path: Text = "/health"
    answering: bool = True
    engine: MaybeName | msgspec.UnsetType = msgspec.UNSET
    connector: MaybeName | msgspec.UnsetType = msgspec.UNSET
    unsalted: Names = ()
    version: VersionText = ""
    formats: Formats = FIRST
    journal_format: FormatNumber = 1
    incarnation: Hash = 0
    catching_up: bool = False
    engine_seq: Sequence | msgspec.UnsetType = msgspec.UNSET
    wants_answers: bool = False
    weights: MaybeName | msgspec.UnsetType = msgspec.UNSET

    @property
    def engine_kind(self) -> str:
        """Return the kind of engine, "" where routers need not know it."""
        return "" if self.engine is msgspec.UNSET else self.engine

    @property
    def way(self) -> Connector | None:
        """Return how it splits prefill and decode; None for a way of a later version."""
        if self.connector is msgspec.UNSET:
            return connector_of(self.engine_kind, self.bootstrap_port)
        return connectors().get(self.connector)

    @property
    def leaving(self) -> bool:
        """Return whether it drains, with an engine that answers."""
        return self.draining and self.answering


class RouterHeartbeat(Message, frozen=True):
    """A router replica's sign of life, each second on `<ns>.rt.<bucket>.<router>`.

    `digest` is of its index at `applied_sequence` of the stream `created`, summed over the workers
    it holds exactly; `scope` tells who these are: only under equal ones digests compare. `workers`
    are those of its bucket, so that meta-routers find a worker that a request names; `left_out` are
    some of them that get nothing for failing requests. A `follower` books in the bucket but takes
    no HTTP requests: it is nothing to meta-routers. A `picker` decides for gateways, and is a
    replica in all else. `admission`, `policy` were changed while it ran; `formats` it reads;
    `fetches`: how long workers lately took to bring blocks; it keeps `prompts` for newcomers.
    """

    router: Member
    bucket: Name
    url: Text
    ready: bool
    epoch: Epoch
    applied_sequence: Sequence = 0
    created: MaybeName = ""
    digest: Hash = 0
    active_requests: Count = 0
    models: Members = ()
    draining: bool = False
    scope: Hash = 0
    heat: BucketHeat = BucketHeat()
    admission: SharedLimits = SharedLimits()
    workers: Members = ()
    left_out: Names = ()
    follower: bool = False
    policy: PolicyUpdate = msgspec.field(default=NO_NEWS, name="trial")  # "policy" was another
    version: VersionText = ""
    formats: Formats = FIRST
    fetches: FetchRows = ()
    picker: bool = False
    prompts: Count = 0

    @property
    def leaving(self) -> bool:
        """Return whether it drains."""
        return self.draining

    @property
    def decides(self) -> bool:
        """Return whether it is a replica, router or picker, and no mere follower."""
        return self.picker or not self.follower


class Started(Message, frozen=True):
    """The driver runs: the first message of every actor, the time to set its timers."""


class BusMessage(Message, frozen=True):
    """Bytes received on the bus; whoever takes them decodes them, drops and counts garbage."""

    subject: str
    data: bytes


class Drain(Message, frozen=True, tag="drain"):
    """Take no new requests from now on, or (`draining` False) take them again."""

    draining: bool = True


class Resync(Message, frozen=True, tag="resync"):
    """A replica misses a worker's events from `next_seq` of `epoch` on (0: it needs everything).

    Sent on `<ns>.ctl.<bucket>.<worker>`. The answer is the worker's own, appended to the journal
    for all replicas: the missing batches while it still has them, else a full dump. With an
    `incarnation` it is for that one alone.
    """

    worker: WorkerName
    epoch: Epoch
    next_seq: Sequence
    router: MaybeName = ""
    incarnation: Hash = 0


class WriteFormat(Message, frozen=True, tag="write-format"):
    """Write journal records in format `number` from now on: `router` hears that all read it.

    Sent as `Resync` is, and only to a worker whose heartbeats say that it can write it.
    """

    worker: WorkerName
    number: FormatNumber
    router: Member


class Reload(Message, frozen=True, tag="reload"):
    """Throw the index away and load it again; `reason` is for the log.

    A snapshot from before sequence `at_least` would not help: what follows it is purged.
    """

    reason: Text
    at_least: Sequence = 0


class WorkerSeen(Message, frozen=True):
    """A worker's heartbeat, forwarded; `restarted` when its epoch is larger than before."""

    heartbeat: WorkerHeartbeat
    joined: bool = False
    restarted: bool = False


class WorkerGone(Message, frozen=True):
    """A worker's heartbeats stopped, or it left."""

    worker: WorkerId


class RouterSeen(Message, frozen=True):
    """Another replica's heartbeat, forwarded; `restarted` when its epoch is larger than before."""

    heartbeat: RouterHeartbeat
    joined: bool = False
    restarted: bool = False


class RouterGone(Message, frozen=True):
    """Another replica's heartbeats stopped, or it left."""

    router: str


class TrustChanged(Message, frozen=True):
    """How far the index may be believed about a worker changed; `reason` says why not fully."""

    worker: WorkerId
    trust: Trust
    reason: str = ""


class JournalOpened(Message, frozen=True):
    """The tail begins, on the stream made at `created`."""

    created: str


class BookingsWait(Message, frozen=True):
    """Bookings of this replica wait in its outbox to be published to the other replicas."""


class AllReported(Message, frozen=True):
    """Every live member has sent a heartbeat since the start: a meta-router may begin to choose."""


class SharesChanged(Message, frozen=True):
    """Tenants began or ceased to wait here: the other replicas are to know at once."""


class StateWanted(Message, frozen=True, tag="state-wanted"):
    """Replica `router` misses bookings of the replica it asks on `<ns>.rctl.<bucket>.<router>`."""

    router: Member


class Dump(Message, frozen=True, tag="dump"):
    """Append all that is held to the journal anew, for every replica; `reason` is for the log."""

    reason: Text


class Status(Message, frozen=True, tag="status"):
    """Answer with what the process knows of itself."""


class TakeSnapshot(Message, frozen=True, tag="take-snapshot"):
    """Write a snapshot now if this replica holds the lease, whether or not one is due."""
