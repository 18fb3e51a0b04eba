"""`kvmesh up`: a whole mesh on one machine, as supervised child processes."""

import asyncio
import contextlib
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kvmesh.app.ops.mesh_place import LOCALHOST
from kvmesh.app.ops.mesh_plan import (
    ROUTER_OFFSET,
    LocalMesh,
    model_names,
    read_buckets,
)
from kvmesh.app.ops.mesh_start import HASHES_KEY, keep_up, start_mesh
from kvmesh.app.ops.site_meshes import site_name, start_sites
from kvmesh.app.picker.envoy_options import GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.app.process.fork_server import ForkServer, Prepare
from kvmesh.app.process.running import Stop, run
from kvmesh.app.process.running_mesh import EnginePlace, RunningMesh, announced
from kvmesh.app.process.supervisor import wait_for_ready
from kvmesh.lab import is_lab_installed
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.roles import NatsSettings, UpSettings
from kvmesh.tasks import supervise

NAMESPACE_VARIABLE = "KVMESH_NAMESPACE"
"""Read by the children."""


SITE_DEMO = (
    "docs/operate/sites.md fills a site; /v1/status lists under sites.trips who left, and why"
)

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
        more: list[LocalMesh] = []
        if settings.sites > 1:
            (plan, *more), nats_url, children = await start_sites(settings, stack, forks)
        else:
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
                print_sites(console, more)
                with announced(describe_mesh(settings, plan, nats_url)):
                    await stop.wait()
        finally:
            waiting.cancel()
            stopping.cancel()
        console.print("stopping …")


async def start_gateway(
    options: GatewayOptions, folder: Path, stack: contextlib.AsyncExitStack
) -> None:
    """Keep an Envoy running until `stack` ends. Raises `TransportError`."""
    server = EnvoyServer(options, folder)
    stack.push_async_callback(server.stop)
    await server.start()
    watcher = supervise("watch envoy", partial(keep_up, "envoy", server))
    stack.callback(watcher.cancel)


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
        namespace=site_name(0)
        if settings.sites > 1
        else os.environ.get(NAMESPACE_VARIABLE, NatsSettings.namespace),
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


def print_sites(console: Console, more: Sequence[LocalMesh]) -> None:
    """Show where the other sites are, and how a request comes to be served there."""
    for mesh in more:
        front = mesh.all()[-1]
        console.print(f"{front.name}: {front.ready_url.rsplit('/', 1)[0]}/v1")
    if more:
        console.print(SITE_DEMO, soft_wrap=True)


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
