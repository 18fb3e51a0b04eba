"""What `kvmesh up` starts and where each of it listens."""

from collections.abc import Sequence

import msgspec

from kvmesh.app.ops.mesh_place import LOCALHOST
from kvmesh.app.picker.envoy_options import Address, GatewayOptions, unharmed
from kvmesh.app.process.supervisor import ChildSpec
from kvmesh.errors import ConfigError
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import UpSettings

ROUTER_OFFSET, ENGINE_OFFSET, EVENTS_OFFSET, REPLAY_OFFSET = 1, 100, 200, 300
GRPC_OFFSET, ENVOY_ADMIN_OFFSET = 400, 499
BEHIND_ENVOY = "--notice-s=0", "--picker-alternatives=2"
"""Of pickers that the Envoy of `kvmesh up` asks: it reads lists."""
MOST_ENGINES, MOST_ROUTERS = 100, 99


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
        engine = ["mocker", "--http-port", str(base + ENGINE_OFFSET + number), *models]
        engine += ["--kv-events-port", str(base + EVENTS_OFFSET + number)]
        engine += ["--kv-replay-port", str(base + REPLAY_OFFSET + number)]
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
