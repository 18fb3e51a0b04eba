"""Settings of how a router treats single requests: whether and how they wait, and for how long."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Final, Literal

from kvmesh.settings.types import Fixed, NonNegative, Often, Seconds

ProgramTurns = Literal["on", "off", "observe"]

TENANT_PART: Final = 4
"""Of the queue one tenant gets this part at most."""

QUANTUM_TOKENS: Final = 4096
"""About one prompt: turns change often, and a longer prompt waits for few of them."""

DECISIONS_KEPT: Final = 4096
"""About 1 KB each."""

EXPLAINED_PER_S: Final = 100
"""Terms of every worker are the larger part of a decision's cost: more than people look at."""

RETRY_BUDGET: Final = 0.2
"""Further attempts for each request in the long run, of all requests together: a fleet that fails
everything gets no more load than this. Envoy's default retry budget is the same."""

WAIT_FOR_WORKER_S: Final = 10.0
"""A worker that starts anew is back in a few seconds; a client is told of a longer absence."""

COMMENT_S: Final = 12.0
"""Less than half of the 30 s after which proxies in front cut a silent stream, and more than
`WAIT_FOR_WORKER_S`: until then a request that no worker can take may be answered 503.
"""


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """Requests wait at the router while every worker is behind. Off until a bound is set."""

    max_backlog_ms: Annotated[NonNegative, Often] = 0.0
    """Hold a request while its best worker is further behind, ms; 0 holds nothing."""
    queue_policy: Literal["fcfs", "wspt", "priority", "locality"] = "fcfs"
    """Order of one tenant's held requests: arrival; least work per priority; priority. Tenants take
    turns by the prompt tokens that no worker has cached; locality: in place of that the longest
    cached prefix goes first among tenants that have not had their share, counted over all replicas
    by what requests really cost, with their output."""
    max_wait_s: Seconds = 30.0
    """Seconds a request is held at most; then it is answered 503."""
    tenant_header: str = "x-kvmesh-tenant"
    """Header that names the tenant; tenants take turns by tokens. Set it at a trusted gateway."""
    metrics_tenant: tuple[str, ...] = ()
    """Tenant that has series of its own among `kvmesh_usage_…` on /metrics, all others together are
    `other`; repeat, 64 at most. GET /v1/usage has all of them."""
    admin_token_file: Path | None = None
    """File with the bearer token that PUT /admin/… asks for; default: only loopback may PUT."""
    max_queued: Annotated[int, Fixed] = 1024
    """Requests held at most; more are answered 503, of one tenant more than a quarter of it, 256
    at least, 429. To be changed while the router runs, by PUT /admin/admission."""
    max_queued_per_tenant: Annotated[int, Fixed] = 256
    """Of a longer queue a quarter, so that one tenant leaves room for the others."""
    queue_fairness: Annotated[Literal["tokens", "locality"], Fixed] = "tokens"
    """What --queue-policy locality changes."""
    quantum_tokens: Annotated[int, Fixed] = QUANTUM_TOKENS
    """Tokens a tenant may be ahead of another by: per turn, and per round under locality."""
    shed_negative: Annotated[bool, Fixed] = False
    """Answer 429 at once to requests of negative priority that would be held: what gateways call
    sheddable. Pickers do."""
    busy_decode_blocks: Annotated[float, Fixed] = 0.0
    """A worker gets nothing new above this share of its KV blocks in use; 0 is off. Like the next
    one a limit to be set in an emergency, by PUT /admin/admission."""
    busy_prefill_tokens: Annotated[int, Fixed] = 0
    """The same above so many queued prompt tokens."""

    def expanded(self, *, sheds: bool = False) -> "AdmissionSettings":
        """Return the settings with what follows from them filled in."""
        return replace(
            self,
            max_queued_per_tenant=max(self.max_queued_per_tenant, self.max_queued // TENANT_PART),
            shed_negative=self.shed_negative or sheds,
            queue_policy="fcfs" if self.queue_policy == "locality" else self.queue_policy,
            queue_fairness="locality" if self.queue_policy == "locality" else self.queue_fairness,
        )


@dataclass(frozen=True, kw_only=True)
class TenantSettings:
    """Whether tenants' cached blocks are kept apart. See docs/workloads/tenants.md."""

    tenant_secret_file: Path | None = None
    """Keeps tenants apart: file with a secret of at least 16 bytes, by which each tenant's requests
    get a cache_salt of their own. Neither times nor answers then reveal others' prompts, and no
    cached block is shared among tenants. Needs engines that take cache_salt: vLLM, SGLang. The same
    for all routers and meta-routers of the mesh, and kept over restarts."""
    tenant_sharing_file: Path | None = None
    """With --tenant-secret-file: TOML file of what tenants share all the same: groups of them, and
    prompts that are public."""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Requests of one session go to one worker. In the mesh all replicas share the bindings."""

    session_affinity: Literal["off", "soft", "hard"] = "off"
    """hard: stay while the worker may be given work; soft: while its predicted backlog is below a
    second, too. An unused session is forgotten after an hour."""


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """Agents take turns while their contexts do not all fit the engines' caches."""

    program_turns: ProgramTurns | Literal["touch"] = "on"
    """on: while the contexts of agents' sessions do not fit the caches, and computing them again
    costs more than waiting, those that fit take turns and keep their caches; the others' requests
    wait here, the longest for as long as engines need to let them in one by one; what is not
    streamed for half of the time that its client says it waits, or 30 s. touch: as on, and a
    context that would be evicted before those of agents that have ended is sent to its engine
    again, for one token, which makes it the newest. observe: follow programs, hold nothing. off:
    nothing is kept of them."""
    program_wait_s: Annotated[float, Fixed] = inf
    """Seconds a request waits for its program's turn at most, below what follows from what engines
    can do."""
    re_touch: Annotated[Literal["on", "off"], Fixed] = "off"
    """What --program-turns touch adds to on."""

    def expanded(self) -> "ProgramSettings":
        """Return the settings with what follows from them filled in."""
        if self.program_turns != "touch":
            return self
        return replace(self, program_turns="on", re_touch="on")


@dataclass(frozen=True, kw_only=True)
class SloSettings:
    """When tokens are due. Without targets nothing is refused. See docs/workloads/slo.md."""

    slo: Annotated[tuple[str, ...], Often] = ()
    """Targets of requests that name none: `ttft-ms=2000,tpot-ms=50`. They are ms until the first
    token, waiting included, and for each further one, on average. `tenant=acme*,ttft-ms=500`: those
    of some tenants; first match wins; repeat. --model-policy has them by model. A request with a
    chance below 0.3 at every worker to meet them is answered 429 at once."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """What a waiting client gets, and how long it may take."""

    request_timeout_s: Annotated[NonNegative, Often] = 1800.0
    """Seconds from a request's arrival to its answer's last byte; 0 is no limit. Streams included.
    The one time-out of requests at engines that show no counters. A client may ask for less with
    x-kvmesh-timeout-s."""
    sse_comment_s: Annotated[float, Fixed] = COMMENT_S
    """A client that asked for a stream gets 200 and a comment after so many seconds without an
    answer, and again; at once if it is held, and each third of the time that it says it waits for a
    byte. Errors then come as an event. 0 is off."""


@dataclass(frozen=True, kw_only=True)
class FailureSettings:
    """What happens to a request whose worker fails it. See docs/operate/failures.md."""

    hang_s: NonNegative = 5.0
    """Seconds for which an engine's counters, KV events and answers all stand still, while it has
    requests, until those are given to other workers; longer while most engines are slow. 0 is
    never."""
    retry_budget: Annotated[float, Fixed] = RETRY_BUDGET
    """0: only what no worker has seen is sent again."""
    wait_for_worker_s: Annotated[float, Fixed] = WAIT_FOR_WORKER_S
    """Seconds a request waits while no worker may be given one, before it is answered 503."""


@dataclass(frozen=True, kw_only=True)
class DecisionSettings:
    """What is kept of decisions, and by what else they are judged."""

    shadow_policy: tuple[str, ...] = ()
    """Weigh these decisions by another formula or weights too, without routing by it:
    `kv:COST[:name=number…]`; repeat. See /v1/status, metrics and the dashboard."""
    show_prefix_text: bool = False
    """Keep the first words of four prompts a second in memory, the newest 128: then the dashboard
    shows what hot prefixes say, to keys of role operate, or to everybody without --api-keys."""
    decision_log: Annotated[int, Fixed] = DECISIONS_KEPT
    """Requests whose decisions are kept, for the dashboard and `kvmesh explain`."""
    explain_per_s: Annotated[int, Fixed] = EXPLAINED_PER_S
    """Decisions a second kept with the terms of every worker, not only of the chosen one; all of
    them at --log-level debug, which writes them."""
