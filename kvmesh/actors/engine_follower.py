"""One engine's events straight into the index of a router alone: no journal between them."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from kvmesh.actors.cache_report import engine_lines
from kvmesh.actors.engine_messages import (
    CacheEmptied,
    EngineCaughtUp,
    EngineConnected,
    EngineLost,
    EnginePayload,
    EngineRestarted,
    EngineServed,
    PromptServed,
)
from kvmesh.actors.kernel import Effect, Fields, Log, Message, Send, Wake
from kvmesh.actors.messages import Tick, TrustChanged
from kvmesh.core.blocks.events import Event, WorkerId
from kvmesh.core.engines.kv_events.cache import EngineCacheStatistics, new_engine_cache
from kvmesh.core.engines.kv_events.regaining import Regaining
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.worker_info import Trust
from kvmesh.errors import CodecError

BEGINS_S: Final = 5.0
"""An engine whose events are not read so long after the start is worth a warning."""


class FollowerOptions(msgspec.Struct, frozen=True):
    """Whose events, and when their absence is taken for a fault.

    `block_size` is the engine's as far as it is known, `secret` what requests are hashed with, too.
    Events have stopped when `silent_requests` answers that must have stored blocks came since the
    last batch, the first of them `silent_s` ago. `engine` is its kind.
    """

    worker: WorkerId
    block_size: int | None = None
    secret: bytes = b""
    listener: str = "registry"
    silent_requests: int = 8
    silent_s: float = 10.0
    engine: str = ""
    replays: bool = False
    """What was published before can be had: until it is read, nothing is known of the present."""
    drops: bool = False
    """It computes the last block that it matched again (EAGLE)."""


class EngineFollower:
    """Folds one engine's batches into `index` and judges how far that may be believed.

    Without a connection, with batches lost or with events that stopped, the worker is distrusted,
    so that it is routed by what was sent to it; it comes back by itself.
    """

    def __init__(self, index: KvIndex, options: FollowerOptions, *, name: str) -> None:
        self.name = name
        self._index = index
        self._options = options
        self._cache = new_engine_cache(
            options.block_size,
            secret=options.secret,
            engine=options.engine,
            drops=options.drops,
        )
        self._regaining = Regaining(self._cache, options.secret)
        self._connected = self._current = False
        self._served = 0
        self._served_since_s = 0.0
        self._reported: tuple[Trust, str] | None = None
        self._begun = False

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case EnginePayload(data):
                # What is replayed is what the engine held some batches ago.
                self._current |= not self._options.replays
                self._served = 0
                return self._on_payload(data, now)
            case EngineServed():
                self._served_since_s = self._served_since_s if self._served else now
                self._served += 1
            case EngineCaughtUp():
                self._current = True
            case EngineConnected(connected):
                self._connected, self._current = connected, False
                self._served = 0
            case EngineRestarted():
                self._current &= not self._options.replays
                self._fold(self._regaining.restart())
            case CacheEmptied():
                self._fold(self._regaining.restart())
            case PromptServed():
                self._regaining.served(message.answer(), now)
                return ()
            case EngineLost(reason):
                return self._on_lost(reason)
            case Tick():
                return self._on_late()
            case _:
                return ()
        return self._report(silent=self._is_silent(now))

    def statistics(self) -> EngineCacheStatistics:
        """Return the present counts."""
        return self._cache.statistics()

    @property
    def block_size(self) -> int:
        """Return the engine's block size in tokens; 0 while it is unknown."""
        return self._cache.block_size

    @property
    def wants_answers(self) -> bool:
        """Return whether `PromptServed` helps to know again what was lost."""
        return self._regaining.wants_answers

    def _on_payload(self, data: bytes, now: float) -> Iterable[Effect]:
        try:
            self._fold(self._regaining.settle(now))
            events = self._regaining.take(data, now, replayed=not self._current)
        except CodecError as error:
            return self._on_lost(str(error))
        self._fold(events)
        lines = engine_lines(self._options.worker, self._cache, events)
        return (*lines, *self._report()) if lines else self._report()

    def _on_lost(self, reason: str) -> Iterable[Effect]:
        self._fold(self._regaining.lose())
        fields = {"worker": self._options.worker, "reason": reason}
        return (Log("error", "engine events lost", fields), *self._report())

    def _fold(self, events: Iterable[Event]) -> None:
        worker = self._options.worker
        for event in events:
            self._index.apply(worker, event)

    def _is_silent(self, now: float) -> bool:
        options = self._options
        enough = self._served >= options.silent_requests
        return enough and now >= self._served_since_s + options.silent_s

    def _judge(self, *, silent: bool) -> tuple[Trust, str]:
        if not self._connected:
            return Trust.APPROX, "its KV event publisher cannot be reached"
        if not self._cache.complete:
            return Trust.DEGRADED, "some of its KV events are lost, until answers tell what it has"
        if silent:
            return Trust.APPROX, "it answers requests, but no KV event comes"
        if not self._current:
            return Trust.CATCHING_UP, "its KV events are being read"
        return Trust.EXACT, ""

    def _report(self, *, silent: bool = False) -> Iterable[Effect]:
        """Tell the listener when the judgement changed."""
        trust, reason = judged = self._judge(silent=silent)
        if judged == self._reported:
            return ()
        first = self._reported is None
        self._reported = judged
        begins = not self._begun and (not self._connected or trust is Trust.CATCHING_UP)
        self._begun = not begins
        told = Send(self._options.listener, TrustChanged(self._options.worker, trust, reason))
        log = self._log("info" if begins or trust is Trust.EXACT else "warning", judged)
        return (log, told, *((Wake(BEGINS_S, Tick("begin")),) if begins and first else ()))

    def _on_late(self) -> Iterable[Effect]:
        """Warn of events that could not be read at first, and cannot now."""
        begun, self._begun = self._begun, True
        return () if begun or self._reported is None else (self._log("warning", self._reported),)

    def _log(self, level: Literal["info", "warning"], judged: tuple[Trust, str]) -> Log:
        trust, reason = judged
        fields: Fields = {"worker": self._options.worker, "trust": trust.value, "reason": reason}
        return Log(level, "trust in worker changed", fields)
