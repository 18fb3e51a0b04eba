"""`kvmesh up`: a whole mesh on one machine, as supervised child processes."""

import asyncio
import contextlib
import dataclasses
import os
import shlex
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kvmesh.app.ops.mesh_place import LOCALHOST, hold_data_dir, refuse_taken_ports, stream_room
from kvmesh.app.ops.mesh_plan import (
    ROUTER_OFFSET,
    LocalMesh,
    mesh_ports,
    model_names,
    plan_mesh,
    read_buckets,
)
from kvmesh.app.ops.nats_keys import write_hash_secret
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.picker.envoy_options import GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer, find_envoy
from kvmesh.app.process.fork_server import ForkServer, Prepare
from kvmesh.app.process.program import Server
from kvmesh.app.process.running import DIE_WITH_PARENT, Stop, run
from kvmesh.app.process.running_mesh import EnginePlace, RunningMesh, announced
from kvmesh.app.process.supervisor import Child, RestartDelay, wait_for_ready
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.lab import is_lab_installed, require_lab
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.roles import NatsSettings, UpSettings
from kvmesh.tasks import supervise

STREAM_VARIABLE, NAMESPACE_VARIABLE = "KVMESH_STREAM_MAX_BYTES", "KVMESH_NAMESPACE"
"""Read by the children."""
HASHES_KEY = "hash.secret"
"""The file of the hash secret in --data-dir."""


LOADED = (
    "kvmesh.cli",
    "kvmesh.entries",
    "kvmesh.observe",
    "kvmesh.app.router.command",
    "kvmesh.app.meta.command",
    "kvmesh.app.worker.command",
    "kvmesh.app.front.otlp_environment",
    "kvmesh.app.mesh.nats_plane",
    "kvmesh.transport.zmq.subscriber",
    "kvmesh_lab.entries",
    "kvmesh_lab.mocker.command",
    "kvmesh.transport.nats.link.broker",
    "encodings.idna",
)
"""What the processes of a mesh have in common, each loaded once."""


async def serve(settings: UpSettings, stop: Stop, forks: ForkServer | None = None) -> None:
    """Start everything, print where it is, restart what dies, stop it all at the end."""
    console = Console(stderr=True)
    async with contextlib.AsyncExitStack() as stack:
        if forks is not None:
            forks.listen()
            stack.push_async_callback(forks.close)
        plan, nats_url, children = await start_mesh(settings, stack, forks)
        waiting = asyncio.ensure_future(wait_for_ready(children, say=console.print))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
                if isinstance(plan.front, GatewayOptions):
                    await start_gateway(plan.front, settings.data_dir / "envoy", stack)
                print_mesh(console, settings, plan, nats_url)
                with announced(describe_mesh(settings, plan, nats_url)):
                    await stop.wait()
        finally:
            waiting.cancel()
            stopping.cancel()
        console.print("stopping …")


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
    log_dir = settings.data_dir / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {DIE_WITH_PARENT: "1"}
    if forks is not None:
        forks.read(spec.args for spec in plan.all())
    children = [Child(spec, environment, log_dir, forks=forks) for spec in plan.all()]
    for child in children:
        await child.start()
        stack.push_async_callback(child.stop)
    return plan, nats_url, children


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


async def start_nats(store_dir: Path, stack: contextlib.AsyncExitStack) -> str:
    """Keep a server running until `stack` ends; return its URL. Raises `TransportError`."""
    server = NatsServer(store_dir=store_dir)
    url = await server.start()
    stack.push_async_callback(server.stop)
    watcher = supervise("watch nats-server", partial(keep_up, "nats-server", server))
    stack.callback(watcher.cancel)
    return url


async def start_gateway(
    options: GatewayOptions, folder: Path, stack: contextlib.AsyncExitStack
) -> None:
    """Keep an Envoy running until `stack` ends. Raises `TransportError`."""
    server = EnvoyServer(options, folder)
    stack.push_async_callback(server.stop)
    await server.start()
    watcher = supervise("watch envoy", partial(keep_up, "envoy", server))
    stack.callback(watcher.cancel)


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


def describe_mesh(settings: UpSettings, plan: LocalMesh, nats_url: str) -> RunningMesh:
    """Return where everything is, for other commands."""
    data_dir = settings.data_dir.absolute()
    buckets = read_buckets(settings)
    routers = [spec.ready_url.rsplit("/", 1)[0] for spec in plan.routers]
    of_bucket = dict(zip(buckets, routers[:: settings.replicas], strict=False))
    of_bucket = of_bucket or {buckets[0]: f"http://{LOCALHOST}:{settings.http_port + 1}"}
    urls = [spec.ready_url.rsplit("/", 1)[0] for spec in plan.engines]
    dealt = [buckets[number % len(buckets)] for number in range(len(urls))]
    return RunningMesh(
        url=f"http://{LOCALHOST}:{settings.http_port}",
        view_url=f"http://{LOCALHOST}:{view_port(settings, plan)}",
        nats_url=nats_url,
        namespace=os.environ.get(NAMESPACE_VARIABLE, NatsSettings.namespace),
        data_dir=str(data_dir),
        buckets=tuple(buckets),
        engines=tuple(
            EnginePlace(url, bucket, of_bucket[bucket])
            for url, bucket in zip(urls, dealt, strict=True)
        ),
        hash_secret_file=str((settings.hash_secret_file or data_dir / HASHES_KEY).absolute()),
    )


def view_port(settings: UpSettings, plan: LocalMesh) -> int:
    """Return the port that shows the mesh: Envoy shows nothing of it, its first picker does."""
    if settings.routers is not None:
        return settings.dashboard_port or settings.http_port + ROUTER_OFFSET + settings.routers
    behind = isinstance(plan.front, GatewayOptions)
    return settings.http_port + (ROUTER_OFFSET if behind else 0)


def print_mesh(console: Console, settings: UpSettings, plan: LocalMesh, nats_url: str) -> None:
    """Show where everything listens and what to try first."""
    table = Table(title="kvmesh is up", title_justify="left")
    table.add_column("what")
    table.add_column("where")
    table.add_row("OpenAI endpoint", f"http://127.0.0.1:{settings.http_port}/v1")
    if isinstance(plan.front, GatewayOptions):
        table.add_row("Envoy's admin port", f"http://{plan.front.admin}/")
    shown = settings.dashboard_port or view_port(settings, plan)
    table.add_row("dashboard", f"http://127.0.0.1:{shown}/")
    table.add_row("NATS", nats_url)
    for spec in [*plan.routers, *plan.engines]:
        table.add_row(spec.name, spec.ready_url.rsplit("/", 1)[0])
    table.add_row("logs", str(Path(settings.data_dir) / "logs"))
    console.print(table)
    chat = {"model": model_names(settings)[0], "messages": [{"role": "user", "content": "hello"}]}
    request = msgspec.json.encode(chat)
    console.print(
        f"try: curl -i http://127.0.0.1:{settings.http_port}/v1/chat/completions "
        '-H "content-type: application/json" '
        f"-d {shlex.quote(request.decode())}",
        soft_wrap=True,
        markup=False,
    )


def command(settings: UpSettings, prepare: Prepare) -> None:
    """Serve a whole mesh on this machine: NATS, engines, routers, one front door.

    `prepare` reads the command lines of its processes.
    """
    configure_logging(settings.log.log_level, settings.log.log_format, role="up")
    get_logger().debug("starting", engines=settings.engines, buckets=settings.buckets)

    forks = ForkServer(LOADED, prepare) if is_lab_installed() else None

    async def main(stop: Stop) -> None:
        await serve(settings, stop, forks)

    run(main)
