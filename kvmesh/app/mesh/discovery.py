"""Where the workers of a router alone are: a file, a DNS name, a Kubernetes service.

Every source is listed again and again, so that no dropped watch goes unnoticed.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from kvmesh.app.members.worker_option import StaticWorker, parse_workers
from kvmesh.app.picker.pool_view import PoolView
from kvmesh.bounds import UNREADABLE, MaybeName, Port
from kvmesh.core.journal.replica import MOST_WORKERS
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.errors import ConfigError, KvMeshError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.upstream.client import UpstreamPool

INTERVAL_S: Final = 2.0
FORMS: Final = (
    "file:PATH, dns://HOST:PORT, kubernetes://NAMESPACE/SERVICE[:PORT] or, with --inference-pool, "
    "inference-pool"
)
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S: Final = 5.0


class Source(Protocol):
    """One place that knows workers."""

    async def find(self) -> list[str]:
        """Return the present workers, written as `--worker` takes them.

        Raises `KvMeshError` when the place cannot be asked now.
        """
        ...


class FileSource:
    """A file with one worker a line, as `--worker` takes it; # begins a comment."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def find(self) -> list[str]:
        """Read the file."""
        try:
            text = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--discover file:{self._path}: {error}") from error
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return [line for line in lines if line]


class DnsSource:
    """A name with one address a worker: a headless service, or several A records."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def find(self) -> list[str]:
        """Resolve the name anew."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise TransportError(f"--discover dns://{self._host}:{self._port}: {error}") from error
        addresses = sorted({str(one[4][0]) for one in found})
        return [worker_at(address, self._port) for address in addresses]


class _Endpoint(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...]
    conditions: dict[str, bool | None] = {}
    targetRef: dict[str, str] | None = None  # noqa: N815  Kubernetes' name


class _Port(msgspec.Struct, frozen=True):
    port: Port
    name: MaybeName = ""


class _Slice(msgspec.Struct, frozen=True):
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_Port, ...] | None = None


class _Slices(msgspec.Struct, frozen=True):
    items: tuple[_Slice, ...]


class KubernetesSource:
    """The ready endpoints of a service, from the API server's EndpointSlices.

    `port` is a number or the port's name; "" takes the first. Runs inside a cluster; its service
    account must be allowed to list endpointslices of the namespace.
    """

    def __init__(self, namespace: str, service: str, port: str, account: Path = ACCOUNT) -> None:
        self._port = port
        self._account = account
        self._name = f"kubernetes://{namespace}/{service}"
        self._path = (
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            f"?labelSelector=kubernetes.io%2Fservice-name%3D{service}"
        )

    async def find(self) -> list[str]:
        """List the slices; those not ready, or ending, are left out."""
        origin = api_server()
        # Token and CA are rotated under a running pod: they are read each time.
        headers = ((b"authorization", b"Bearer " + self._read("token").strip()),)
        pool = UpstreamPool(ssl=self._tls() if origin.startswith("https") else None)
        try:
            status, body = await fetch(
                pool, origin, self._path, timeout_s=TIMEOUT_S, headers=headers
            )
        finally:
            await pool.close()
        if status != HTTP_OK:
            text = body[:200].decode(errors="replace")
            raise TransportError(f"--discover {self._name}: API server answered {status}: {text}")
        try:
            slices = msgspec.json.decode(body, type=_Slices)
            return sorted({text for one in slices.items for text in self._workers(one)})
        except (*UNREADABLE, ValueError) as error:
            raise TransportError(f"--discover {self._name}: {error}") from error

    def _workers(self, one: _Slice) -> list[str]:
        port = self._port_of(one.ports or ())
        if port is None:
            return []
        ready = [
            endpoint
            for endpoint in one.endpoints or ()
            if endpoint.conditions.get("ready") is not False
            and not endpoint.conditions.get("terminating")
        ]
        return [
            worker_at(endpoint.addresses[0], port, (endpoint.targetRef or {}).get("name", ""))
            for endpoint in ready
            if endpoint.addresses
        ]

    def _port_of(self, ports: Sequence[_Port]) -> int | None:
        if self._port.isdigit():
            return int(self._port)
        named = [one.port for one in ports if self._port in {"", one.name}]
        return named[0] if named else None

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._read("ca.crt").decode())

    def _read(self, name: str) -> bytes:
        try:
            return (self._account / name).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"--discover {self._name}: {error}; it works inside a cluster, with a service "
                "account's token mounted"
            ) from error


class Discovery:
    """Lists all sources at intervals, and reports when the set of workers changes.

    A worker whose URL `guard` refuses is left out, unless it is one of the `fixed`. Of a source
    that lists more than `most`, those known before stay and as many others come as there is room.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        fixed: Sequence[str],
        guard: UrlGuard | None = None,
        *,
        most: int = MOST_WORKERS,
    ) -> None:
        self._most = most
        self._sources = sources
        self._fixed = list(fixed)
        self._guard = guard or UrlGuard()
        self._known: dict[Source, list[str]] = {}
        self._wrong: dict[Source, str] = {}
        self._found: list[StaticWorker] = []
        self._updates = asyncio.Event()
        self._log = get_logger()

    def check_now(self) -> None:
        """List again at once: a source has changed."""
        self._updates.set()

    async def check(self) -> list[StaticWorker]:
        """List every source; one that fails keeps its last list."""
        for source in self._sources:
            try:
                texts = self._admit(source, await source.find())
                parse_workers([*self._fixed, *texts], empty=True)
                self._known[source] = texts
                self._wrong.pop(source, None)
            except KvMeshError as error:
                if self._wrong.get(source) != str(error):
                    self._wrong[source] = str(error)
                    self._log.warning("workers not listed, the known stay", error=str(error))
        texts = [*self._fixed, *(text for known in self._known.values() for text in known)]
        try:
            workers = parse_workers(list(dict.fromkeys(texts)), empty=True)
        except ConfigError as error:
            self._log.warning("sources disagree, the known workers stay", error=str(error))
            return self._found
        return [one for one in workers if self._admits(one)]

    def _admit(self, source: Source, texts: list[str]) -> list[str]:
        """Return the texts for which there is room, and say what is left out, once."""
        if len(texts) <= self._most:
            return texts
        listed, known = frozenset(texts), dict.fromkeys(self._known.get(source, ()))
        kept = [text for text in known if text in listed]
        kept += islice((text for text in texts if text not in known), self._most - len(kept))
        if len(kept) != len(known):
            self._log.error(
                "too many workers listed",
                listed=len(texts),
                kept=len(kept),
                remedy="make more buckets",
            )
        return sorted(kept)

    def _admits(self, worker: StaticWorker) -> bool:
        refusal = self._guard.judge(worker.worker, worker.url, time.monotonic())
        if refusal is not None and refusal.new:
            self._log.error("worker refused", worker=worker.worker, reason=refusal.reason)
        return refusal is None

    async def run(self, replace: Callable[[Sequence[StaticWorker]], None]) -> None:
        """Call `replace` with all workers whenever they are others, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._updates.wait(), INTERVAL_S)
            self._updates.clear()
            found = await self.check()
            if found != self._found:
                self._report(found)
                replace(found)

    def _report(self, found: list[StaticWorker]) -> None:
        before = {one.worker for one in self._found}
        now = {one.worker for one in found}
        self._found = found
        joined, left = sorted(now - before), sorted(before - now)
        self._log.info("workers discovered", workers=len(found), joined=joined, left=left)


def worker_at(address: str, port: int, name: str = "") -> str:
    """Return the worker at an IP address as `--worker` takes it."""
    host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address  # noqa: PLR2004  IPv6
    return f"{name}=http://{host}:{port}" if name else f"http://{host}:{port}"


def api_server() -> str:
    """Return the origin of the cluster's API server. Raises `ConfigError` outside a cluster."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise ConfigError(
            "--discover kubernetes://…: KUBERNETES_SERVICE_HOST is not set: this is no pod"
        )
    if "://" in host:
        return host
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{os.environ.get('KUBERNETES_SERVICE_PORT_HTTPS', '443')}"


def parse_source(text: str) -> Source:
    """Return the source `text` names, see `FORMS`. Raises `ConfigError`."""
    if text.startswith("file:"):
        return FileSource(Path(text.removeprefix("file:")))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(text), None
    match parts.scheme:
        case "dns" if parts.hostname and port:
            return DnsSource(parts.hostname, port)
        case "kubernetes" if parts.netloc and parts.path.strip("/"):
            service, _, wanted = parts.path.strip("/").partition(":")
            return KubernetesSource(parts.netloc, service, wanted)
        case _:
            raise ConfigError(f"--discover {text!r}: write {FORMS}")


FIRST_S: Final = 5.0
"""How long a first look waits for the API server, so that a start finds the workers at once."""


class PoolSource:
    """What a pool's watch knows. A `Source`: nothing is asked for it."""

    def __init__(self, pool: PoolView) -> None:
        self._pool = pool

    async def find(self) -> list[str]:
        """Return the pool's endpoints. Raises `TransportError` before the pool was read."""
        pool = self._pool
        if not pool.synced.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pool.synced.wait(), FIRST_S)
        if not pool.synced.is_set():
            raise TransportError(f"InferencePool {pool.name}: {pool.why_not()}")
        return [one.as_worker() for one in pool.found.endpoints]
