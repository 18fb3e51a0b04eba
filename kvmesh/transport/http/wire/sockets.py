"""Sockets as a gateway wants them: no Nagle, dead peers found, as many as the system allows."""

import asyncio
import contextlib
import errno
import resource
import select
import socket
import ssl as tls
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kvmesh.errors import TransportError

_NO_FAMILY: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""Errors of an address whose family (IPv6, mostly) is switched off."""

ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  recognised, not chosen
"""Hosts of listeners on every address."""

BACKLOG: Final = 4096
"""Connections the kernel queues before accept; the system's somaxconn may lower it."""

OTHER_FILES: Final = 128
"""Open files left for all but streams: listeners, event sockets, clients turned away, logs."""

_HANDSHAKE_TIMEOUT_S: Final = 10.0

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
"""A peer that lost power during a long prefill is noticed after 60 s, not at the deadline."""


def announced_host(host: str) -> str:
    """Return the host by which others reach a listener on `host`: itself, but for an address that
    stands for all of this machine's the one of its default route, and where it has none its name.
    """
    if host not in ANY_HOST:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: sends nothing, chooses the route
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def tune(sock: socket.socket) -> None:
    """Turn Nagle off and keep-alive probes on; accepted sockets inherit both (Linux)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)


def listen(
    host: str, port: int, *, backlog: int = BACKLOG, shared: bool = False
) -> list[socket.socket]:
    """Return one listening socket per address of `host` ("" for all), all on the same port.

    `shared`: other processes of this user may listen there, too, and each gets a part of the
    connections. Port 0 takes a free one. An address family this machine does not have is left out.
    Raises `TransportError` naming the address.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                place = address[0], port, *address[2:]
                sock = _listen(family, place, backlog, shared=shared)
            except OSError as error:
                if error.errno not in _NO_FAMILY:
                    raise
                missing = error
                continue
            sockets.append(sock)
            port = port or sock.getsockname()[1]
        if missing is not None and not sockets:
            raise missing
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise TransportError(f"cannot listen on {host or '*'}:{port}: {error}") from error
    return sockets


async def accept(
    sockets: Sequence[socket.socket],
    protocol: Callable[[], asyncio.Protocol],
    servers: list[asyncio.Server],
    *,
    ssl: tls.SSLContext | None,
    backlog: int = BACKLOG,
) -> None:
    """Accept connections on listening sockets, each with a `protocol` of its own; what accepts them
    is added to `servers`, one by one.
    """
    loop = asyncio.get_running_loop()
    for sock in sockets:
        server = await loop.create_server(
            protocol,
            sock=sock,
            ssl=ssl,
            backlog=backlog,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S if ssl else None,
        )
        servers.append(server)


def waiting(listening: Iterable[socket.socket]) -> list[socket.socket]:
    """Return the connections that nobody has accepted yet: who stops listening resets the rest."""
    found: list[socket.socket] = []
    for sock in listening:
        with contextlib.suppress(OSError):  # BlockingIOError: there are no more
            while True:
                found.append(sock.accept()[0])
    for one in found:
        one.setblocking(False)
    return found


async def take(
    accepted: Sequence[socket.socket],
    protocol: Callable[[], asyncio.Protocol],
    *,
    ssl: tls.SSLContext | None,
) -> None:
    """Serve connections that `waiting` found, each with a `protocol` of its own."""
    loop, limit_s = asyncio.get_running_loop(), _HANDSHAKE_TIMEOUT_S if ssl else None
    await asyncio.gather(
        *(
            loop.connect_accepted_socket(protocol, sock, ssl=ssl, ssl_handshake_timeout=limit_s)
            for sock in accepted
        ),
        return_exceptions=True,
    )


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether bytes wait in the kernel, which closing would answer by a reset."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    looking = select.poll()
    looking.register(sock.fileno(), select.POLLIN)
    return bool(looking.poll(0))


def _listen(
    family: int, address: tuple[object, ...], backlog: int, *, shared: bool
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tune(sock)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, return it: a stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft


def connections_within(open_files: int) -> int:
    """Return how many client connections so many open files allow, each with one upstream.

    More, and requests fail for want of a file where 503 would have told the client to wait.
    """
    if open_files == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, (open_files - OTHER_FILES) // 2)
