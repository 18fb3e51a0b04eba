"""Following an engine's KV event publisher over ZMQ: live messages, replays, reconnects."""

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol, assert_never

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from kvmesh.core.engines.kv_events.event_source import EventSource, SourceOptions
from kvmesh.core.engines.kv_events.source_actions import (
    Action,
    AskReplay,
    Deliver,
    Lost,
    Restarted,
    Resumed,
    SourceCaughtUp,
)
from kvmesh.errors import TransportError
from kvmesh.transport.zmq.socket import LoopSocket
from kvmesh.transport.zmq.statistics import SubscriptionStatistics

SEQ_BYTES: Final = 8
LIVE_FRAMES: Final = 3
REPLY_FRAMES: Final = frozenset({3, 4})
"""Delimiter, sequence number, payload; from newer engines with the topic second."""

MAX_MESSAGE_BYTES: Final = 32 * 1024**2
"""A batch of one prompt of a million tokens takes 7 MB; what is decoded may take 64 times that."""
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 2_000
HEARTBEAT_MS: Final = 5_000
HEARTBEAT_TIMEOUT_MS: Final = 15_000


class EventListener(Protocol):
    """Where batches go. Calls come on the event loop, in order; they must not raise."""

    def on_batch(self, seq: int, payload: bytes) -> None:
        """Take batch `seq`: the one after the last, or the first after a restart or loss."""
        ...

    def on_restarted(self) -> None:
        """Learn that the engine began anew: its cache is empty, its batches count from 0."""
        ...

    def on_lost(self, first: int, last: int) -> None:
        """Learn that batches `first..last` are gone for good: the cache is no longer known."""
        ...

    def on_resumed(self, seq: int) -> None:
        """Learn that what was held behind batch `seq` (see `EventSubscription.resume`) counts, in
        place of all that was delivered: what followed comes now.
        """
        ...

    def on_caught_up(self, last_seq: int) -> None:
        """Learn that all published so far was delivered (-1: nothing was). May come repeatedly."""
        ...

    def on_connection(self, *, connected: bool) -> None:
        """Learn that the live connection was made or lost; it is remade for ever."""
        ...


class SubscriptionOptions(msgspec.Struct, frozen=True):
    """Which publisher to follow. `bind` is for engines that connect to their listener.

    Without `replay_endpoint` what was published before, or is lost on the way, cannot be had.
    `topic` is a prefix; empty takes all.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False
    receive_hwm: int = 100_000
    source: SourceOptions = SourceOptions()


class EventSubscription:
    """Delivers every batch of one publisher to `listener`, in order, or says what is lost."""

    def __init__(self, options: SubscriptionOptions, listener: EventListener) -> None:
        self._options = options
        self._listener = listener
        self._source = EventSource(options.source, can_replay=options.replay_endpoint is not None)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._live: LoopSocket | None = None
        self._monitor: LoopSocket | None = None
        self._replay: LoopSocket | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._started = False
        self._connected = False
        self._batches = self._malformed = 0

    @property
    def endpoint(self) -> str:
        """Return the live endpoint; when bound to port `*`, with the port it got."""
        return self._live.last_endpoint if self._live else self._options.endpoint

    def start(self) -> None:
        """Connect or bind, on the running loop; replay begins when the engine is there.

        Raises `TransportError` naming an address that cannot be used.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context = context
        socket = self._configure(context.socket(zmq.SUB))
        socket.setsockopt(zmq.SUBSCRIBE, self._options.topic.encode())
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        monitor = socket.get_monitor_socket(events)
        try:
            if self._options.bind:
                socket.bind(self._options.endpoint)
            else:
                socket.connect(self._options.endpoint)
        except zmq.ZMQError as error:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)
            context.term()
            raise TransportError(f"KV events at {self._options.endpoint}: {error}") from error
        self._monitor = LoopSocket(monitor, self._on_monitor)
        self._live = LoopSocket(socket, self._on_live)

    def begin_again(self) -> None:
        """Have everything delivered anew, as far as the publisher still has it."""
        self._perform(self._source.begin_again(self._now()))

    def verify(self) -> None:
        """Find out whether the engine is still the one whose batches were delivered."""
        self._perform(self._source.on_reconnect(self._now()))

    def resume(self, seq: int, digest: int) -> None:
        """Go on behind batch `seq`, which has that digest, if the publisher still has it."""
        self._perform(self._source.resume(seq, digest, self._now()))

    def close(self) -> None:
        """Stop delivering and close the sockets; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for socket in (self._replay, self._live, self._monitor):
            if socket is not None:
                socket.close()
        self._replay = self._live = self._monitor = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def statistics(self) -> SubscriptionStatistics:
        """Return the totals."""
        return SubscriptionStatistics(
            last_seq=self._source.last_seq,
            batches=self._batches,
            lost_batches=self._source.lost_batches,
            restarts=self._source.restarts,
            replay_rounds=self._source.rounds,
            malformed=self._malformed,
            connected=self._connected,
        )

    def _configure(self, socket: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
        socket.setsockopt(zmq.RCVHWM, self._options.receive_hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        return socket

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _on_live(self, frames: list[bytes]) -> None:
        if len(frames) != LIVE_FRAMES or len(frames[1]) != SEQ_BYTES:
            self._malformed += 1
            return
        seq = int.from_bytes(frames[1], "big")
        self._perform(self._source.on_live(seq, frames[2], self._now()))

    def _on_reply(self, round_: int, frames: list[bytes]) -> None:
        if len(frames) not in REPLY_FRAMES or len(frames[-2]) != SEQ_BYTES:
            self._malformed += 1
            return
        seq = int.from_bytes(frames[-2], "big")
        self._perform(self._source.on_reply(round_, seq, frames[-1], self._now()))

    def _on_monitor(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        self._connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._listener.on_connection(connected=self._connected)
        if not self._connected:
            return
        if self._started:
            self._perform(self._source.on_reconnect(self._now()))
        else:
            self._started = True
            self._perform(self._source.start(self._now()))

    def _on_timer(self) -> None:
        self._timer = None
        self._perform(self._source.on_time(self._now()))

    def _perform(self, actions: Iterable[Action]) -> None:
        try:
            self._carry_out(actions)
        finally:
            self._set_timer()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Deliver():
                    self._batches += 1
                    self._listener.on_batch(action.seq, action.payload)
                case AskReplay():
                    self._ask(action)
                case SourceCaughtUp():
                    self._end_replay()
                    self._listener.on_caught_up(action.last_seq)
                case Lost():
                    self._listener.on_lost(action.first, action.last)
                case Restarted():
                    self._listener.on_restarted()
                case Resumed():
                    self._listener.on_resumed(action.seq)
                case _:
                    assert_never(action)

    def _set_timer(self) -> None:
        """Look again at the source's deadline; a timer for earlier is left to set the next one.

        The time is kept here: for delays below 0.5 ms uvloop returns a handle without `when()`.
        """
        deadline = self._source.deadline
        if deadline is None or self._live is None:
            return
        if self._timer is not None:
            if self._timer_s <= deadline:
                return
            self._timer.cancel()
        self._timer_s = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._on_timer)

    def _ask(self, ask: AskReplay) -> None:
        """Ask over a fresh connection; the replies of the one before are not wanted any more."""
        self._end_replay()
        if self._context is None or self._options.replay_endpoint is None:
            return
        socket = self._configure(self._context.socket(zmq.DEALER))
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(self._options.replay_endpoint)
        self._replay = LoopSocket(socket, lambda frames: self._on_reply(ask.round, frames))
        self._replay.send_nowait((b"", ask.first.to_bytes(SEQ_BYTES, "big")))

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None
