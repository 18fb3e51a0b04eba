"""Workers as a gateway knows them: by `ip:port`."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import ConfigError, TransportError
from kvmesh.tasks import report
from kvmesh.transport.http.upstream.origin import Origin

FRESH_S: Final = 30.0
"""So long the addresses of a name are believed before they are looked up anew."""

KEPT: Final = 4096
"""Origins that are remembered; all are forgotten at once."""

SUBSETS: Final = 64
SUBSET_S: Final = 1.0
"""Which workers a subset means is found anew after so long: workers may move."""

MOST_KEPT: Final = 4096
"""Endpoints of a subset that is remembered."""


class _Known(msgspec.Struct):
    endpoint: bytes
    checked_s: float
    """`inf`: an address, which needs no looking up."""


class _Subset(msgspec.Struct, frozen=True):
    """The workers at a subset's endpoints, None for all, as long as `version` is in force."""

    workers: frozenset[WorkerId] | None
    found_s: float
    version: object


class Located(msgspec.Struct, frozen=True):
    """A worker and where it is."""

    worker: WorkerId
    origin: str


class Addresses:
    """Finds the endpoints of origins; host names are resolved, and looked up anew while they are
    used. `workers` yields who is there; `version` returns the same object until others are.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        workers: Callable[[], Iterable[Located]],
        version: Callable[[], object] = object,
    ) -> None:
        self._clock = clock
        self._workers = workers
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, asyncio.Task[bytes]] = {}
        self._version = version
        self._subsets: dict[tuple[str, ...], _Subset] = {}

    def find(self, origin: str) -> bytes | None:
        """Return the endpoint of `http[s]://host[:port]`; None: `resolve` has to look it up.

        Raises `ConfigError` for what is no origin.
        """
        known = self._known.get(origin)
        if known is None:
            return self._parse(origin)
        if self._clock() - known.checked_s > FRESH_S:
            known.checked_s = self._clock()
            self._resolve(origin)
        return known.endpoint

    async def resolve(self, origin: str) -> bytes:
        """Return the endpoint of an origin with a name. Raises `TransportError`."""
        task = self._asked.get(origin) or self._resolve(origin)
        try:
            return await asyncio.shield(task)
        except (OSError, UnicodeError) as error:
            raise TransportError(f"{origin}: its name is not resolved: {error}") from error

    def within(self, subset: tuple[str, ...]) -> frozenset[WorkerId] | None:
        """Return the workers at these endpoints; None: all that there are."""
        now, version = self._clock(), self._version()
        known = self._subsets.get(subset)
        if known is not None and known.version is version and now - known.found_s < SUBSET_S:
            return known.workers
        endpoints = {one.encode() for one in subset}
        everyone = list(self._workers())
        inside = frozenset(one.worker for one in everyone if self.known(one.origin) in endpoints)
        found = None if everyone and len(inside) == len(everyone) else inside
        if len(self._subsets) >= SUBSETS:
            self._subsets.clear()
        if len(subset) <= MOST_KEPT:
            self._subsets[subset] = _Subset(found, now, version)
        return found

    def origin_of(self, endpoint: str) -> str | None:
        """Return the origin of the workers at an endpoint. O(workers)."""
        wanted = endpoint.encode()
        return next(
            (one.origin for one in self._workers() if self.known(one.origin) == wanted), None
        )

    def known(self, origin: str) -> bytes | None:
        """Return the endpoint of an origin; None for what is none, or has yet to be looked up."""
        try:
            endpoint = self.find(origin)
        except (ConfigError, ValueError):
            return None
        if endpoint is None:
            self._resolve(origin)
        return endpoint

    def close(self) -> None:
        """Look nothing up any more."""
        for task in self._asked.values():
            task.cancel()

    def _parse(self, origin: str) -> bytes | None:
        parsed = Origin.parse(origin)
        try:
            address = ipaddress.ip_address(parsed.host)
        except ValueError:
            return None
        return self._keep(origin, str(address), parsed.port, float("inf"))

    def _keep(self, origin: str, host: str, port: int, checked_s: float) -> bytes:
        endpoint = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        if len(self._known) >= KEPT and origin not in self._known:
            self._known.clear()
        self._known[origin] = _Known(endpoint, checked_s)
        return endpoint

    def _resolve(self, origin: str) -> asyncio.Task[bytes]:
        task = self._asked.get(origin)
        if task is None:
            task = self._asked[origin] = asyncio.get_running_loop().create_task(self._ask(origin))
            task.add_done_callback(lambda done: self._resolved(origin, done))
        return task

    def _resolved(self, origin: str, done: "asyncio.Task[bytes]") -> None:
        self._asked.pop(origin, None)
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, OSError | UnicodeError):
            report("addresses", RuntimeError(f"{origin}: {error}"))

    async def _ask(self, origin: str) -> bytes:
        parsed = Origin.parse(origin)
        found = await asyncio.get_running_loop().getaddrinfo(
            parsed.host, parsed.port, type=socket.SOCK_STREAM
        )
        # Of several the same one each time, while it is among them.
        hosts = sorted(str(address[0]) for *_, address in found)
        return self._keep(origin, hosts[0], parsed.port, self._clock())
