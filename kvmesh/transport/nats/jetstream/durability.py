"""What a loss of power or of a server would take along: said at the start, for operators.

By default nats-server acknowledges first and writes within 2 minutes: a power cut loses what was
acknowledged (Jepsen NATS 2.12.1: 14 % of the writes). A mesh survives it, because the workers hold
the truth.
"""

import asyncio
import contextlib
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from kvmesh.observe import get_logger
from kvmesh.transport.nats.link.connection import NatsConnection

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 4 * 1024**2
HTTP_PORT = 80
MONITORING_PORT = 8222

Durability = Literal["always", "interval", "unknown"]


class _Config(msgspec.Struct, frozen=True):
    sync_always: bool = False


class _Jsz(msgspec.Struct, frozen=True):
    server_id: str = ""
    config: _Config | None = None


async def check_durability(connection: NatsConnection, monitoring_url: str = "") -> Durability:
    """Return what the connected server's /jsz says; warn when it is "interval".

    `monitoring_url` is plain http, default port 8222 of the server's host. Never raises: a server
    without monitoring, or another one than the connected, is "unknown".
    """
    server_id = connection.client.server_fact("server_id")
    server = connection.client.connected_url
    if not monitoring_url and server is not None:
        monitoring_url = f"http://{server.hostname}:{MONITORING_PORT}"
    found: Durability = "unknown"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            body = await _get(monitoring_url, "/jsz?config=true")
        answer = msgspec.json.decode(body, type=_Jsz)
        if answer.config is not None and answer.server_id == server_id:
            found = "always" if answer.config.sync_always else "interval"
    except (OSError, TimeoutError, ValueError, msgspec.DecodeError) as error:
        get_logger().debug("no answer from /jsz", url=monitoring_url, error=str(error))
    if found == "interval":
        get_logger().warning(
            "JetStream acknowledges before it writes to disk: a power cut loses acknowledged "
            "events; set sync_interval: always in the server's jetstream block",
            url=monitoring_url,
        )
    return found


def warn_of_one_copy(connection: NatsConnection, replicas: int) -> bool:
    """Say when a cluster keeps the journal on one of its servers only; return whether it does."""
    lonely = replicas == 1 and connection.client.server_fact("cluster") != ""
    if lonely:
        get_logger().warning(
            "one server of the cluster keeps the journal: while it is away nothing is stored; "
            "set --stream-replicas 3 on all routers"
        )
    return lonely


async def _get(url: str, path: str) -> bytes:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or HTTP_PORT)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
        answer = await reader.read(MAX_ANSWER_BYTES)
        while chunk := await reader.read(MAX_ANSWER_BYTES - len(answer)):
            answer += chunk
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError(f"{url}{path}: {head[:80]!r}")
    return body
