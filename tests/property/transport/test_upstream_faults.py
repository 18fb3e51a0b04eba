"""The connections to one engine and the requests that wait for one, where anything may raise."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.transport.http.upstream import connection as connections
from kvmesh.transport.http.upstream.client import (
    OnChunk,
    UpstreamCall,
    UpstreamFailure,
    UpstreamOptions,
    UpstreamPool,
    UpstreamRequest,
)
from kvmesh.transport.http.upstream.response_head import ResponseHead
from tests.property.support.faults import PlantedError, Trial, raises_at
from tests.property.support.pipe import Pipe, Turns

ORIGIN = "http://127.0.0.1:8000"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
MOST = 2


class Sink:
    """Who asked; each of its methods but `crash` may raise."""

    on_chunk: OnChunk | None = None

    def __init__(self, trial: Trial, n: int) -> None:
        self._trial = trial
        self.n = n
        self.call: UpstreamCall | None = None

    def on_head(self, head: ResponseHead) -> None:
        assert head.status == 200
        self._trial.count("on_head")

    def on_body(self, data: bytes) -> None:
        assert data == b"{}"
        self._trial.count("on_body")

    def on_due(self) -> None:
        """Not called: there is no `on_chunk`."""

    def on_last_chunks(self, data: bytes) -> None:
        """Not called: there is no `on_chunk`."""

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        if self.n not in self._trial.ledger.open:
            return  # what a `finally` still tells one that has crashed
        self.on_head(head)
        self.on_end(body)

    def on_end(self, data: bytes = b"") -> None:
        if data:
            self.on_body(data)
        self._end("answered")
        self._trial.count("on_end")

    def on_failure(self, failure: UpstreamFailure) -> None:
        self._end(failure.kind)
        self._trial.count("on_failure")

    def crash(self, error: Exception) -> None:
        assert isinstance(error, PlantedError), repr(error)
        if self.n in self._trial.ledger.open:
            self._end("crashed")

    def _end(self, how: str) -> None:
        self._trial.ledger.end(self.n, how)


class HostMachine(RuleBasedStateMachine):
    """Each request ends once; connections are bounded; nobody waits beside a free one."""

    @initialize()
    def begin(self) -> None:
        self.trial, self.turns = Trial(), Turns()
        self.patched = mock.patch.object(connections, "tune")
        self.patched.start()
        self.refusing = False
        self.at_once = asyncio.Event()
        self.at_once.set()
        self.pipes: list[tuple[Any, Pipe]] = []
        self.sinks: list[Sink] = []
        self.serial = count()
        loop: Any = self.turns.loop
        loop.create_connection = self.trial.may_raise(self.connect)
        options = UpstreamOptions(max_connections=MOST, max_idle=1, connect_timeout_s=1000.0)
        self.pool = self.turns.inside(lambda: UpstreamPool(options=options))

    async def connect(self, factory: Callable[[], Any], *_: object, **__: object) -> None:
        await self.at_once.wait()
        if self.refusing:
            raise OSError("refused")
        protocol = factory()
        pipe = Pipe(protocol)
        pipe.write = self.trial.may_raise(self.forget)  # type: ignore[method-assign]
        protocol.connection_made(pipe)
        self.pipes.append((protocol, pipe))

    def forget(self, data: bytes | bytearray | memoryview) -> None:
        """Take what is written: the engine has read it."""

    @rule(at=raises_at, many=st.integers(1, 4))
    def send(self, at: int, many: int) -> None:
        def send_all() -> None:
            for _ in range(many):
                sink = Sink(self.trial, next(self.serial))
                request = UpstreamRequest(ORIGIN, "POST", b"/", (), b"body")
                sink.call = self.pool.send(request, sink)
                self.trial.ledger.accept(sink.n)
                self.sinks.append(sink)

        self.trial.attempt(at, self.turns.inside, send_all)

    @rule(refuse=st.booleans())
    def engine_goes_or_comes(self, refuse: bool) -> None:
        self.refusing = refuse

    @rule(quick=st.booleans())
    def connecting_takes_long_or_not(self, quick: bool) -> None:
        self.turns.inside(self.at_once.set if quick else self.at_once.clear)

    @rule(which=st.integers(0, 3), at=raises_at)
    def answer(self, which: int, at: int) -> None:
        busy = [one for one, pipe in self.pipes if one._sink is not None and not pipe.ended]
        for one in busy[which : which + 1]:
            self.trial.attempt(at, self.turns.inside, one.data_received, ANSWER)

    @rule(which=st.integers(0, 3), at=raises_at)
    def lose(self, which: int, at: int) -> None:
        left = [(one, pipe) for one, pipe in self.pipes if not pipe.ended]
        for one, pipe in left[which : which + 1]:
            pipe.ended = True
            self.trial.attempt(at, self.turns.inside, one.connection_lost, None)

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        left = [one for one in self.sinks if one.n in self.trial.ledger.open]
        for sink in left[which : which + 1]:
            assert sink.call is not None
            self.trial.ledger.end(sink.n, "cancelled")
            self.turns.inside(sink.call.cancel)

    @rule(at=raises_at)
    def expire(self, at: int) -> None:
        for host in list(self.pool._state.hosts.values()):
            for call in list(host.waiting)[:1]:
                host.waiting[call].cancel()
                self.trial.attempt(at, self.turns.inside, host._expire, call)

    @invariant()
    def who_is_open_is_somewhere_and_only_those(self) -> None:
        if not hasattr(self, "pool"):
            return
        calls: list[UpstreamCall] = []
        for host in self.pool._state.hosts.values():
            assert len(host.connections) + len(host.connecting) <= MOST
            carried = [one._attempt for one in host.connections]
            calls += [one for one in carried if isinstance(one, UpstreamCall)]
            calls += [one for one in (*host.connecting, *host.waiting) if one not in calls]
            assert not (host.waiting and (host.idle or host._has_room()))
        numbers = [one.sink.n if isinstance(one.sink, Sink) else -1 for one in calls]
        assert sorted(numbers) == sorted(self.trial.ledger.open)  # type: ignore[type-var]

    def teardown(self) -> None:
        """Let all be answered: nothing waits, and nothing is kept of those that went."""
        if not hasattr(self, "pool"):
            return
        self.refusing = False
        self.turns.inside(self.at_once.set)
        for _ in range(100):
            self.turns.turn()
            self.answer(0, 0)
        assert not self.trial.ledger.open
        for host in self.pool._state.hosts.values():
            assert not host.waiting
            assert not host.connecting
            assert len(host.connections) == len(host.idle)
        self.turns.wait(self.pool.close())
        self.turns.turn()
        assert not self.pool._state.hosts
        self.patched.stop()
        self.turns.close()


TestHost = HostMachine.TestCase
TestHost.settings = settings(max_examples=40, stateful_step_count=20)


def test_who_waits_is_connected_for_when_another_is_given_up_before_it_was_connected() -> None:
    machine = HostMachine()
    machine.begin()
    machine.connecting_takes_long_or_not(quick=False)
    machine.send(0, 2 * MOST)

    machine.cancel(0)

    machine.who_is_open_is_somewhere_and_only_those()
    machine.teardown()
