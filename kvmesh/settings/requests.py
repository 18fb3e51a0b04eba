"""Settings of how a router treats single requests: whether and how they wait, and for how long."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvmesh.settings.types import Count, Multiple, NonNegative, Positive, Seconds, Share, Status

ProgramTurns = Literal["on", "off", "observe"]


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """Requests wait at the router while every worker is behind. Off until a bound is set."""

    max_backlog_ms: NonNegative = 0.0
    """Hold a request while its best worker's predicted backlog is longer, ms; 0 holds nothing."""
    queue_policy: Literal["fcfs", "wspt", "priority"] = "fcfs"
    """Order of one tenant's held requests: arrival; least work per priority; priority."""
    max_queued: Positive = 1024
    """Requests held at most; more are answered 503."""
    max_queued_per_tenant: Positive = 256
    """Requests of one tenant held at most; more are answered 429."""
    max_wait_s: Seconds = 30.0
    """Seconds a request is held at most; then it is answered 503."""
    shed_negative: bool = False
    """Answer 429 at once to requests of negative priority that would be held (those that gateways
    call sheddable)."""
    tenant_header: str = "x-kvmesh-tenant"
    """Header that names the tenant; tenants take turns by tokens. Set it at a trusted gateway."""
    queue_fairness: Literal["tokens", "locality"] = "tokens"
    """How tenants share while requests are held: in turns, by the prompt tokens that no worker has
    cached (tokens); or the longest cached prefix first among tenants that have not had their share,
    counted over all replicas by what requests really cost, with their output (locality)."""
    quantum_tokens: Positive = 4096
    """Tokens a tenant may be ahead of another by: per turn, and per round under locality."""
    busy_decode_blocks: NonNegative = 0.0
    """Give a worker nothing new above this share of its KV blocks in use; 0 is off."""
    busy_prefill_tokens: Count = 0
    """Give a worker nothing new above so many queued prompt tokens; 0 is off."""
    admin_token_file: Path | None = None
    """File with the bearer token that PUT /admin/… asks for; default: only loopback may PUT."""


@dataclass(frozen=True, kw_only=True)
class TenantSettings:
    """Whether tenants' cached blocks are kept apart. See docs/workloads/tenants.md."""

    tenant_isolation: bool = False
    """Give each tenant's requests a cache_salt of its own, by a secret: neither times nor answers
    then reveal others' prompts, and no cached block is shared among tenants. Needs engines that
    take cache_salt: vLLM, SGLang."""
    tenant_secret_file: Path | None = None
    """File with the secret of --tenant-isolation, at least 16 bytes; the same for all routers and
    meta-routers of the mesh, and kept over restarts."""
    tenant_sharing_file: Path | None = None
    """TOML file of what tenants share all the same: groups of them, and prompts that are public."""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Requests of one session go to one worker. In the mesh all replicas share the bindings."""

    session_affinity: Literal["off", "soft", "hard"] = "off"
    """hard: stay while the worker may be given work; soft: while its backlog is short, too."""
    session_header: str = "x-kvmesh-session"
    """Header that names the session; else the body's kvmesh.session."""
    session_ttl_s: Positive = 3600
    """Seconds after which an unused session is forgotten."""
    session_slack_ms: NonNegative = 1000.0
    """soft: predicted backlog of its worker above which a session moves, ms."""


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """Agents take turns while their contexts do not all fit the engines' caches."""

    program_turns: ProgramTurns = "on"
    """on: while the contexts of agents' sessions do not fit the caches, and computing them again
    costs more than waiting, those that fit take turns and keep their caches; the others' requests
    wait here. observe: follow programs, hold nothing. off: nothing is kept of them."""
    program_wait_s: Seconds = 120.0
    """Seconds a request waits for its program's turn at most; then it goes, whatever it evicts. One
    whose answer is not streamed waits 30 s at most: nothing shows its client that it is held."""
    program_fill: Multiple = 1.0
    """Share of an engine's cache that the contexts of programs with a turn may fill."""
    program_ttl_s: Seconds = 7200.0
    """Seconds after which an agent that sent nothing is forgotten."""
    re_touch: Literal["on", "off"] = "off"
    """on: a context that would be evicted before those of agents that have ended is sent to its
    engine again, for one token, which makes it the newest."""
    re_touch_bytes: Positive = 67108864
    """Bytes that agents' last prompts may take here, to be sent again."""
    max_programs: Positive = 65536
    """Agents that are followed; beyond them those longest unused are forgotten."""


@dataclass(frozen=True, kw_only=True)
class SloSettings:
    """When tokens are due. Without targets nothing is refused. See docs/workloads/slo.md."""

    slo_ttft_ms: NonNegative = 0.0
    """Target of requests that name none: ms until the first token, waiting included; 0 is none."""
    slo_tpot_ms: NonNegative = 0.0
    """The same for each further token, ms on average."""
    tenant_slo: tuple[str, ...] = ()
    """`tenant=acme*,slo-ttft-ms=2000,slo-tpot-ms=50`: the targets of some tenants instead; first
    match wins; repeat. --model-policy has them by model, requests name their own."""
    slo_refuse_below: Share = 0.3
    """Answer 429 at once to a request whose chance to meet its targets is less at every worker,
    times 1 + its priority; 0 refuses none."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """What a waiting client gets, and how long it may take."""

    request_timeout_s: NonNegative = 1800.0
    """Seconds from a request's arrival to its answer's last byte, streams included; 0 is no limit.
    The one time-out of requests at engines that show no counters. A client may ask for less with
    x-kvmesh-timeout-s."""
    sse_comment_s: NonNegative = 15.0
    """A client that asked for a stream gets 200 and a comment after so many seconds without an
    answer, and again; errors then come as an event. 0 is off."""


@dataclass(frozen=True, kw_only=True)
class FailureSettings:
    """What happens to a request whose worker fails it. See docs/operate/failures.md."""

    retry_statuses: tuple[Status, ...] = (429, 500, 502, 503, 504)
    """Answers of a worker that mean "ask another", before the client's first byte; repeat."""
    retry_budget: Share = 0.2
    """Further attempts for each request in the long run, of all requests together: a fleet that
    fails everything gets no more load than this. 0: only what no worker has seen is sent again."""
    hang_s: NonNegative = 5.0
    """Seconds for which an engine's counters, KV events and answers all stand still, while it has
    requests, until those are given to other workers; longer while most engines are slow. 0 is
    never."""
    wait_for_worker_s: NonNegative = 10.0
    """Seconds a request waits while no worker may be given one, before it is answered 503."""


@dataclass(frozen=True, kw_only=True)
class DecisionSettings:
    """What is kept of decisions, and by what else they are judged."""

    decision_log: Positive = 4096
    """Requests whose decisions are kept, for the dashboard and `kvmesh explain`."""
    explain_per_s: Count = 100
    """Decisions a second kept with the terms of every worker, not only of the chosen one; all of
    them at --log-level debug, which writes them."""
    watch_prompts: bool = False
    """Tokenize prompts under router modes that look at none, too: for hot prefixes, what round
    robin finds cached, and `kvmesh analyze --live`."""
    shadow_policy: tuple[str, ...] = ()
    """Weigh these decisions by another formula or weights too, without routing by it:
    `kv:COST[:name=number…]`; repeat. See /v1/status, metrics and the dashboard."""
