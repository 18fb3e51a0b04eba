import contextlib
from pathlib import Path
from typing import Any

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions


async def start_server(stack: contextlib.AsyncExitStack, path: Path, **options: Any) -> NatsServer:
    server = NatsServer(path / "store", log_path=path / "nats.log", **options)
    await server.start()
    stack.push_async_callback(server.stop)
    return server


async def connect(stack: contextlib.AsyncExitStack, **options: Any) -> NatsConnection:
    connection = NatsConnection(NatsOptions(**{"first_connect_s": 60.0} | options))
    await connection.connect()
    stack.push_async_callback(connection.close)
    return connection
