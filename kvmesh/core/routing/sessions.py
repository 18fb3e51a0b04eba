"""Which worker serves each session: conversations stay where they began."""

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Final, Literal

import msgspec
import xxhash

from kvmesh.bounds import MAX_MEMBER
from kvmesh.core.blocks.events import WorkerId

Affinity = Literal["off", "soft", "hard"]

SESSION: Final = b"x-kvmesh-session"
PROGRAM: Final = b"x-kvmesh-program"
CLAUDE: Final = b"x-claude-code-session-id"
DYNAMO: Final = b"x-dynamo-session-id"
CODEX: Final = (b"session-id", b"session_id")
OPENCODE: Final = (b"x-session-id", b"x-session-affinity")
SMG: Final = b"x-smg-routing-key"
SESSION_HEADERS: Final = (PROGRAM, CLAUDE, DYNAMO, *CODEX, *OPENCODE, SMG)
"""Headers by which programs, Claude Code, Dynamo's clients, Codex, OpenCode and SMG's clients name
a session. A sub-agent of Claude Code is in its session's.

`x-correlation-id` is none of them: gateways give each request its own.
"""

_KEY_DIGITS: Final = 32

_FRESH_SHARE: Final = 0.5
"""A binding in use is told anew after this share of its time to live."""


class SessionOptions(msgspec.Struct, frozen=True):
    """How sessions bind. hard: to its worker while that may be given work at all; soft: while its
    predicted backlog is at most `slack_ms` besides.

    A session unused for `ttl_s` is forgotten, and the one longest unused beyond `max_sessions`.
    """

    affinity: Affinity = "off"
    ttl_s: float = 3600.0
    slack_ms: float = 1000.0
    max_sessions: int = 1 << 17


class SessionStatistics(msgspec.Struct, frozen=True):
    """Sessions known now; counts of requests with one, since the start."""

    sessions: int
    kept: int
    moved: int
    began: int


class _Binding(msgspec.Struct, eq=False):
    worker: WorkerId
    used_s: float
    reported_s: float


def session_key(session: str, tenant: str = "") -> str:
    """Return 32 hex digits for a session's name, so that no store shows what clients call it.

    Sessions of two tenants are two, whatever their names.
    """
    name = f"{tenant}\0{session}" if tenant else session
    return xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))


def affinity_of(cache_key: str, tenant: str = "") -> int:
    """Return the u64 that stands for a prompt cache key in the choice among equal workers, never 0.
    Equal keys of two tenants are two.
    """
    name = f"{tenant}\0{cache_key}"
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) or 1


class Sessions:
    """Bindings by `session_key`, of this replica and, through `learn`, of its peers.

    `updates` are bindings peers should hear of; whoever tells them empties it, and sets `on_news`,
    which is called at each. Where nobody does it has no more than `max_sessions` either. A session
    stays where the backlog is `slack_ms` at most; with `hard` ones it is no matter how long.
    """

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self.hard = options.affinity == "hard"
        self.slack_ms = inf if self.hard else options.slack_ms
        self.updates: dict[str, WorkerId] = {}
        self.on_news: Callable[[], None] | None = None
        self._bindings: OrderedDict[str, _Binding] = OrderedDict()
        self._kept = self._moved = self._began = 0

    def find(self, key: str, now: float) -> WorkerId | None:
        """Return the session's worker; None for a session unknown or unused for too long."""
        binding = self._bindings.get(key)
        if binding is None:
            return None
        if now - binding.used_s > self.options.ttl_s:
            del self._bindings[key]
            return None
        return binding.worker

    def moves(self, wait_ms: float, *, hopeless: bool = False) -> bool:
        """Return whether a session leaves its worker, which could take its request, but behind so
        much work, or only with targets missed that others might meet (`hopeless`).
        """
        return not self.hard and (hopeless or wait_ms > self.slack_ms)

    def bind(self, key: str, worker: WorkerId, now: float) -> None:
        """Note that a request of the session goes to `worker`."""
        binding = self._bindings.get(key)
        if binding is None:
            self._began += 1
            self._enter(key, worker, now)
            self._report(key, worker)
            return
        binding.used_s = now
        self._bindings.move_to_end(key)
        if binding.worker != worker:
            self._moved += 1
            binding.worker = worker
        else:
            self._kept += 1
            if now - binding.reported_s < _FRESH_SHARE * self.options.ttl_s:
                return
        binding.reported_s = now
        self._report(key, worker)

    def learn(self, key: str, worker: WorkerId, now: float) -> None:
        """Take a binding from the shared store: the last one written counts, for all replicas. What
        is no such entry is passed over.

        One of this replica that is still to be written comes later in the store, and stays.
        """
        if key in self.updates or len(key) != _KEY_DIGITS or not 0 < len(worker) <= MAX_MEMBER:
            return
        self._enter(key, worker, now)

    def statistics(self) -> SessionStatistics:
        """Return the present counts."""
        return SessionStatistics(len(self._bindings), self._kept, self._moved, self._began)

    def _report(self, key: str, worker: WorkerId) -> None:
        self.updates[key] = worker
        if self.on_news is not None:
            self.on_news()

    def _enter(self, key: str, worker: WorkerId, now: float) -> None:
        self._bindings[key] = _Binding(worker, now, now)
        self._bindings.move_to_end(key)
        if len(self._bindings) > self.options.max_sessions:
            unused, _ = self._bindings.popitem(last=False)
            self.updates.pop(unused, None)
