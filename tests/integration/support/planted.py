"""An error planted where a request passes, and what is left of requests behind it."""

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import structlog
from structlog.typing import EventDict

from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.passed_answer import PassedAnswer
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.deadlines import ForwardClock

RELEASED_LOOKS = 300
_NO_HEADERS: Mapping[str, str] = {}


def _drop(*_: object) -> EventDict:
    raise structlog.DropEvent


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Log nothing: what is kept of a log keeps an error's frames; forget what was made before."""
    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [_drop]
    logging.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        processors[:] = before


class Planted:
    """Raises once in a method: before it does anything, or (`late`) when all is done."""

    def __init__(self, owner: type, name: str, *, late: bool) -> None:
        self.fired = False
        self._owner = owner
        self._name = name
        self._late = late
        self._plain: Any = vars(owner)[name]

    def __str__(self) -> str:
        return f"{self._owner.__name__}.{self._name}{' (late)' if self._late else ''}"

    def _raise(self) -> None:
        if not self.fired:
            self.fired = True
            raise RuntimeError("planted")

    def _made(self, when: Callable[..., bool]) -> Callable[..., Any]:
        plain, late = self._plain, self._late

        @functools.wraps(plain)
        def planted(one: Any, *args: Any, **kwargs: Any) -> Any:
            if not when(one, *args):
                return plain(one, *args, **kwargs)
            if not late:
                self._raise()
            found = plain(one, *args, **kwargs)
            if late:
                self._raise()
            return found

        @functools.wraps(plain)
        async def planted_async(one: Any, *args: Any, **kwargs: Any) -> Any:
            if not late:
                self._raise()
            found = await plain(one, *args, **kwargs)
            if late:
                self._raise()
            return found

        return planted_async if inspect.iscoroutinefunction(plain) else planted

    @contextlib.contextmanager
    def in_place(self, when: Callable[..., bool]) -> Iterator[None]:
        """Have it raise within the block, in the first object for which `when` holds."""
        setattr(self._owner, self._name, self._made(when))
        try:
            yield
        finally:
            setattr(self._owner, self._name, self._plain)


async def ask(
    url: str,
    body: dict[str, Any],
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] = _NO_HEADERS,
) -> str:
    """Ask on a connection of its own; say what the client saw."""
    async with httpx.AsyncClient(base_url=url, timeout=10.0) as client:
        seen = ""
        try:
            async with client.stream("POST", path, json=body, headers=headers) as answer:
                async for piece in answer.aiter_text():
                    seen += piece
        except httpx.ReadTimeout:
            return "nothing"
        except httpx.RemoteProtocolError:
            return "event" if '"internal_error"' in seen else "abort"
    if answer.status_code != 200:
        return f"{answer.status_code}"
    return "event" if '"internal_error"' in seen else "whole"


class Inside:
    """What serves in this process, to be looked at while requests come and go.

    Objects made before count for nothing behind `gc.freeze`: it makes looking cheap. `behind` is
    what was looked at before, and hidden by that.
    """

    def __init__(self, behind: "Inside | None" = None) -> None:
        gc.collect()
        self._servers: list[HttpServer] = [*behind._servers] if behind else []
        self._pools: list[UpstreamPool] = [*behind._pools] if behind else []
        self._contexts: list[RoutingContext] = [*behind._contexts] if behind else []
        self._cares: list[FailureCare] = [*behind._cares] if behind else []
        for one in gc.get_objects():
            match one:
                case HttpServer():
                    self._servers.append(one)
                case UpstreamPool():
                    self._pools.append(one)
                case RoutingContext():
                    self._contexts.append(one)
                case FailureCare():
                    self._cares.append(one)
                case _:
                    pass

    def at_the_gate(self) -> int:
        """Return how many requests wait for their turn."""
        return sum(len(one.gate.waiting) + len(one.gate._binding) for one in self._contexts)

    def body_bytes(self) -> int:
        """Return what bodies take of the budgets of all servers here."""
        listeners = (server._listener for server in self._servers)
        return sum(one.bodies.used for one in listeners if one is not None)

    def requests(self) -> int:
        """Return how many requests are being read or answered."""
        listeners = (server._listener for server in self._servers)
        return sum(one.busy for found in listeners if found for one in found.connections)

    def left(self) -> dict[str, int]:
        """Return what requests still hold, by name; only what is not 0."""
        found: Counter[str] = Counter()
        found["body bytes"] = self.body_bytes()
        for pool in self._pools:
            hosts = pool._state.hosts.values()
            found["busy upstreams"] += sum(len(one.connections) - len(one.idle) for one in hosts)
            found["connecting"] += sum(len(one.waiting) + len(one.connecting) for one in hosts)
            idle = sum(len(one.connections) for one in hosts)
            found["timers"] += len(pool.wheel) - idle
        for context in self._contexts:
            found["open bookings"] += len(context.open_requests)
            found["bookings"] += len(context.scheduler.sequences.owned())
        found["at the gate"] = self.at_the_gate()
        for care in self._cares:
            found["waiting for somebody"] += care.patience.waiting
            found["watched"] += len(care.hangs.waiting)
        gc.collect()
        for one in gc.get_objects():
            if isinstance(one, Forward | PassedAnswer | Scope | ForwardClock | RoutedRequest):
                found[type(one).__name__] += 1
        return {name: count for name, count in found.items() if count}

    async def all_released(self) -> dict[str, int]:
        """Return what is still held after a while: nothing, as a rule."""
        for _ in range(RELEASED_LOOKS):
            if not self.left():
                return {}
            await asyncio.sleep(0.01)
        return self.left()


@contextlib.contextmanager
def looked_inside(behind: Inside | None = None) -> Iterator[Inside]:
    """Look at what serves by now, and what was seen `behind` it before.

    What was made until now is not looked at any more: in a long run each look would take 0.3 s.
    """
    inside = Inside(behind)
    gc.freeze()
    yield inside
