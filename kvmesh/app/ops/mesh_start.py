"""The processes of a `kvmesh up`: NATS, then what the plan says, each kept running."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvmesh.app.ops.mesh_place import hold_data_dir, refuse_taken_ports, stream_room
from kvmesh.app.ops.mesh_plan import LocalMesh, mesh_ports, plan_mesh, read_buckets
from kvmesh.app.ops.nats_keys import write_hash_secret
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.picker.envoy_server import find_envoy
from kvmesh.app.process.fork_server import ForkServer
from kvmesh.app.process.program import Server
from kvmesh.app.process.running import DIE_WITH_PARENT
from kvmesh.app.process.supervisor import Child, ChildSpec, RestartDelay
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.lab import require_lab
from kvmesh.observe import get_logger
from kvmesh.settings.roles import NatsSettings, UpSettings
from kvmesh.tasks import supervise

STREAM_VARIABLE = "KVMESH_STREAM_MAX_BYTES"
"""Read by the children."""
HASHES_KEY = "hash.secret"
"""The file of the hash secret in --data-dir."""


async def start_mesh(
    settings: UpSettings, stack: contextlib.AsyncExitStack, forks: ForkServer | None = None
) -> tuple[LocalMesh, str, list[Child]]:
    """Start every process, not ready yet, and keep it running until `stack` ends; return the plan,
    the URL of NATS and the processes. Raises `ConfigError` before anything is started.
    """
    require_lab("`kvmesh up` with its simulated engines")
    if settings.gateway:
        find_envoy()
    refuse_taken_ports(mesh_ports(settings), f"--http-port {settings.http_port}")
    stack.enter_context(hold_data_dir(settings.data_dir))
    settings = with_secret(settings)
    nats_url = settings.nats_url or await start_nats(settings.data_dir / "nats", stack)
    plan = plan_mesh(settings, nats_url, small_streams(settings))
    return plan, nats_url, await start_children(plan.all(), settings.data_dir, stack, forks)


async def start_children(
    specs: Sequence[ChildSpec],
    data_dir: Path,
    stack: contextlib.AsyncExitStack,
    forks: ForkServer | None,
) -> list[Child]:
    """Start processes and keep them running until `stack` ends; their logs go to `data_dir`."""
    log_dir = data_dir / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {DIE_WITH_PARENT: "1"}
    if forks is not None:
        forks.read(spec.args for spec in specs)
    children = [Child(spec, environment, log_dir, forks=forks) for spec in specs]
    for child in children:
        await child.start()
        stack.push_async_callback(child.stop)
    return children


def with_secret(settings: UpSettings) -> UpSettings:
    """Return the settings with a file of the hash secret: kept in --data-dir unless one is given.

    Raises `ConfigError` when it cannot be written.
    """
    if settings.hash_secret_file is not None:
        return settings
    path = settings.data_dir / HASHES_KEY
    try:
        write_hash_secret(path)
    except OSError as error:
        raise ConfigError(f"--data-dir {settings.data_dir}: {error}; name another one") from error
    return dataclasses.replace(settings, hash_secret_file=path)


def small_streams(settings: UpSettings) -> list[str]:
    """Return what routers are told where the embedded server's disk is too small for defaults."""
    if settings.nats_url or STREAM_VARIABLE in os.environ:
        return []
    room = stream_room(settings.data_dir, len(read_buckets(settings)))
    return [] if room >= NatsSettings.stream_max_bytes else ["--stream-max-bytes", str(room)]


async def start_nats(store_dir: Path, stack: contextlib.AsyncExitStack, config: str = "") -> str:
    """Keep a server running until `stack` ends; return its URL. Raises `TransportError`."""
    server = NatsServer(store_dir=store_dir, config=config)
    url = await server.start()
    stack.push_async_callback(server.stop)
    watcher = supervise("watch nats-server", partial(keep_up, "nats-server", server))
    stack.callback(watcher.cancel)
    return url


async def keep_up(name: str, server: Server) -> None:
    """Start the server anew, on the same port, whenever it ends by itself."""
    loop, log = asyncio.get_running_loop(), get_logger(child=name)
    delay, said = RestartDelay(), ""
    while True:
        started = loop.time()
        await server.wait_ended()
        delay_s = delay.after(loop.time() - started)
        if not said:
            log.warning("child died, restarting", after_s=delay_s)
        await asyncio.sleep(delay_s)
        try:
            await server.start()
        except (KvMeshError, OSError) as error:
            if str(error) != said:
                said = str(error)
                log.error("child cannot be started, trying again", error=said)  # noqa: TRY400  no bug
        else:
            said = ""
