"""`kvmesh up`: a whole mesh on one machine, as supervised child processes."""

import asyncio
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kvmesh.app.ops.mesh_place import LOCALHOST, hold_data_dir, refuse_taken_ports, stream_room
from kvmesh.app.ops.nats.keys import write_hash_secret
from kvmesh.app.ops.nats.server import NatsServer
from kvmesh.app.picker.envoy_options import Address, GatewayOptions, unharmed
from kvmesh.app.picker.envoy_server import EnvoyServer, find_envoy
from kvmesh.app.process.fork_server import ForkServer, Prepare
from kvmesh.app.process.program import Server
from kvmesh.app.process.running import DIE_WITH_PARENT, Stop, run
from kvmesh.app.process.running_mesh import EnginePlace, RunningMesh, announced
from kvmesh.app.process.supervisor import Child, ChildSpec, RestartDelay, wait_for_ready
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.lab import is_lab_installed, require_lab
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import NatsSettings, UpSettings
from kvmesh.tasks import supervise

ROUTER_OFFSET, ENGINE_OFFSET, EVENTS_OFFSET, REPLAY_OFFSET = 1, 100, 200, 300
GRPC_OFFSET, ENVOY_ADMIN_OFFSET = 400, 499
BEHIND_ENVOY = "--notice-s=0", "--picker-alternatives=2"
"""Of pickers that the Envoy of `kvmesh up` asks: it reads lists."""
MOST_ENGINES, MOST_ROUTERS = 100, 99
STREAM_VARIABLE, NAMESPACE_VARIABLE = "KVMESH_STREAM_MAX_BYTES", "KVMESH_NAMESPACE"
"""Read by the children."""
READY_TIMEOUT_S = 60.0
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


class LocalMesh(msgspec.Struct, frozen=True):
    """The children of one mesh, in the order they start; in front a meta-router or a gateway."""

    engines: list[ChildSpec]
    sidecars: list[ChildSpec]
    routers: list[ChildSpec]
    front: ChildSpec | GatewayOptions

    def all(self) -> list[ChildSpec]:
        """Return every child that is a kvmesh."""
        inside = [*self.engines, *self.sidecars, *self.routers]
        return inside if isinstance(self.front, GatewayOptions) else [*inside, self.front]


def plan_mesh(settings: UpSettings, nats_url: str, stream_options: Sequence[str] = ()) -> LocalMesh:
    """Return what to start. Ports: front door P, routers P+1…, engines P+100…, events P+200…,
    pickers' gRPC P+400….

    Raises `ConfigError` when there are more buckets than engines, more of something than ports,
    or a bucket's name is used twice or is none.
    """
    buckets = read_buckets(settings)
    base = settings.http_port
    tokenizer = ["--tokenizer", str(settings.tokenizer)] if settings.tokenizer else []
    log = ["--log-level", settings.log.log_level]
    # With = a name may begin with a dash.
    models = [f"--served-model-name={name}" for name in model_names(settings)]
    secret = settings.hash_secret_file
    nats = ["--nats-url", nats_url, *log]
    nats += [] if secret is None else ["--hash-secret-file", str(secret)]
    engines: list[ChildSpec] = []
    sidecars: list[ChildSpec] = []
    routers: list[ChildSpec] = []
    for number in range(settings.engines):
        url = f"http://127.0.0.1:{base + ENGINE_OFFSET + number}"
        bucket = buckets[number % len(buckets)]
        engine = ["mocker", "--port", str(base + ENGINE_OFFSET + number), *models]
        engine += ["--kv-events-port", str(base + EVENTS_OFFSET + number)]
        engine += ["--replay-port", str(base + REPLAY_OFFSET + number)]
        engine += ["--block-size", str(settings.kv_cache_block_size)]
        engine += ["--num-gpu-blocks-override", str(settings.num_gpu_blocks)]
        engine += ["--speedup-ratio", str(settings.speedup_ratio)]
        engine += ["--timing-profile", settings.timing_profile, *tokenizer, *log]
        engines.append(ChildSpec(name=f"engine-{number}", args=engine, ready_url=f"{url}/health"))
        sidecar = ["worker", "--engine-url", url, "--bucket", bucket]
        sidecar += ["--worker-id", f"worker-{number}", *nats]
        sidecars.append(ChildSpec(name=f"worker-{number}", args=sidecar))
    replicas = 0 if settings.routers is not None else settings.replicas
    for number, bucket in enumerate(b for b in buckets for _ in range(replicas)):
        port = base + ROUTER_OFFSET + number
        replica = f"{bucket}-{number % settings.replicas}"
        role = "picker" if settings.gateway else "router"
        router = [role, "--bucket", bucket, "--router-id", replica, *nats, *tokenizer]
        if settings.gateway:
            router += ["--grpc-port", str(base + GRPC_OFFSET + number), *BEHIND_ENVOY]
        router += stream_options
        router += ["--http-port", str(port), "--router-mode", settings.router_mode]
        router += ["--kv-cache-block-size", str(settings.kv_cache_block_size)]
        ready = f"http://127.0.0.1:{port}/ready"
        routers.append(ChildSpec(name=f"{role}-{replica}", args=router, ready_url=ready))
    if settings.gateway:
        return LocalMesh(engines, sidecars, routers, gateway_options(settings))
    front = _front(settings, [*nats, *tokenizer, *stream_options], ["--nats-url", nats_url, *log])
    return LocalMesh(engines, sidecars, routers, front)


def _front(settings: UpSettings, routers: Sequence[str], meta: Sequence[str]) -> ChildSpec:
    """Return the process that listens at the front door's port: --routers of the one bucket, or a
    meta-router; `routers` and `meta` are what either is told besides.
    """
    base, shown = settings.http_port, dashboard_options(settings)
    ready = f"http://127.0.0.1:{base}/ready"
    if settings.routers is None:
        front = ["meta-router", "--http-port", str(base), *meta]
        front += ["--bucket-policy", settings.bucket_policy, *shown]
        return ChildSpec("meta-router", front, ready)
    bucket = read_buckets(settings)[0]
    front = ["router", "--processes", str(settings.routers), "--bucket", bucket]
    front += ["--router-id", bucket, "--http-port", str(base), *routers, *shown]
    front += ["--router-mode", settings.router_mode]
    front += ["--kv-cache-block-size", str(settings.kv_cache_block_size)]
    return ChildSpec("routers", front, ready)


def dashboard_options(settings: UpSettings) -> list[str]:
    """Return what the front door is told of the dashboard."""
    port = settings.dashboard_port
    return [] if port is None else ["--dashboard-port", str(port)]


def gateway_options(settings: UpSettings) -> GatewayOptions:
    """Return what Envoy is told: where the pickers and the engines are."""
    base = settings.http_port
    asked = range(base + GRPC_OFFSET, base + GRPC_OFFSET + settings.replicas)
    engines = range(base + ENGINE_OFFSET, base + ENGINE_OFFSET + settings.engines)
    options = GatewayOptions(
        listen=Address(LOCALHOST, base),
        admin=Address(LOCALHOST, base + ENVOY_ADMIN_OFFSET),
        pickers=tuple(Address(LOCALHOST, port) for port in asked),
        endpoints=tuple(Address(LOCALHOST, port) for port in engines),
    )
    return unharmed(options)


def read_buckets(settings: UpSettings) -> list[str]:
    """Return the names of the buckets. Raises `ConfigError` as `plan_mesh` does."""
    buckets = [name.strip() for name in settings.buckets.split(",") if name.strip()]
    if not buckets or len(set(buckets)) != len(buckets):
        raise ConfigError(f"--buckets {settings.buckets!r}: name each bucket once, e.g. chat,code")
    if settings.gateway and settings.routers is not None:
        raise ConfigError(
            f"--gateway --routers {settings.routers}: Envoy is in front of pickers, --routers has "
            "nobody in front; leave one of them out"
        )
    if (settings.gateway or settings.routers is not None) and len(buckets) > 1:
        if settings.buckets != UpSettings.buckets:
            flag, words = (
                ("--gateway", "a gateway sends to one InferencePool, which is one bucket")
                if settings.gateway
                else ("--routers", "routers behind one port are replicas of one bucket")
            )
            raise ConfigError(
                f"{flag} --buckets {settings.buckets}: {words}; name one, e.g. --buckets "
                f"{buckets[0]}"
            )
        buckets = buckets[:1]
    if settings.gateway and settings.dashboard_port is not None:
        raise ConfigError(
            f"--gateway --dashboard-port {settings.dashboard_port}: Envoy serves no dashboard, the "
            "first picker's port does, and no inference; leave --dashboard-port out"
        )
    if len(buckets) > settings.engines:
        raise ConfigError(f"--engines {settings.engines} is less than one for each of {buckets}")
    for bucket in buckets:
        check_name(bucket, "--buckets")
    routers = len(buckets) * settings.replicas if settings.routers is None else settings.routers + 1
    if settings.engines > MOST_ENGINES or routers > MOST_ROUTERS:
        raise ConfigError(
            f"--engines {settings.engines}, --replicas {settings.replicas}: one kvmesh up has "
            f"ports for {MOST_ENGINES} engines and {MOST_ROUTERS} routers"
        )
    return buckets


def model_names(settings: UpSettings) -> tuple[str, ...]:
    """Return the names of the engines' model. Raises `ConfigError` for one that is empty."""
    names = settings.served_model_name or (settings.model,)
    if not all(name.strip() for name in names):
        raise ConfigError(f"--model, --served-model-name: {names} has an empty name; name each")
    return names


def mesh_ports(settings: UpSettings) -> list[int]:
    """Return every port the mesh listens on. Raises `ConfigError` as `plan_mesh` does."""
    base, routers = settings.http_port, len(read_buckets(settings)) * settings.replicas
    if settings.routers is not None:
        routers = settings.routers + (settings.dashboard_port is None)
    ports = [base + number for number in range(ROUTER_OFFSET + routers)]
    for offset in (ENGINE_OFFSET, EVENTS_OFFSET, REPLAY_OFFSET):
        ports += [base + offset + number for number in range(settings.engines)]
    if settings.gateway:
        ports += [base + GRPC_OFFSET + number for number in range(settings.replicas)]
        ports.append(base + ENVOY_ADMIN_OFFSET)
    shown = settings.dashboard_port
    if shown in ports:
        raise ConfigError(f"--dashboard-port {shown} is one of the mesh's own: name another")
    return ports if shown is None else [*ports, shown]


async def serve(settings: UpSettings, stop: Stop, forks: ForkServer | None = None) -> None:
    """Start everything, print where it is, restart what dies, stop it all at the end."""
    console = Console(stderr=True)
    async with contextlib.AsyncExitStack() as stack:
        if forks is not None:
            forks.listen()
            stack.push_async_callback(forks.close)
        plan, nats_url, children = await start_mesh(settings, stack, forks)
        waiting = asyncio.ensure_future(wait_for_ready(children, READY_TIMEOUT_S))
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
