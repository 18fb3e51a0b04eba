"""Messages between the outside and the actors. Each is an immutable struct."""

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.core.events import WorkerId


class Appended(Message, frozen=True):
    """The journal stored the append with this `token` at `sequence`."""

    token: int
    sequence: int


class JournalRecord(Message, frozen=True):
    """One message read from the journal; `worker` is taken from its subject."""

    sequence: int
    worker: WorkerId
    data: bytes


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
    """What an engine reports of itself. Blocks are KV blocks of `block_size` tokens."""

    running_requests: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    total_blocks: int = 0

    @property
    def gpu_cache_usage_perc(self) -> float:
        """Return used / total, 0..1; 0 when the total is unknown."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0


class WorkerHeartbeat(Message, frozen=True):
    """A worker's sign of life, each second on `<ns>.hb.<bucket>.<worker>` as msgpack map.

    `last_seq` is the last event sequence its publisher handed to the journal in `epoch`, so a lost
    tail event shows. `url` is where requests go; `events` is False for a worker without KV events.
    """

    worker: WorkerId
    bucket: str
    epoch: int
    last_seq: int
    url: str
    models: tuple[str, ...]
    block_size: int
    load: WorkerLoad = WorkerLoad()
    events: bool = True
    dp_rank: int | None = None
    draining: bool = False


class RouterHeartbeat(Message, frozen=True):
    """A router replica's sign of life, each second on `<ns>.rt.<bucket>.<router>`."""

    router: str
    bucket: str
    url: str
    ready: bool
    epoch: int
    applied_sequence: int = 0
    created: str = ""
    digest: int = 0
    active_requests: int = 0
    models: tuple[str, ...] = ()
    draining: bool = False
