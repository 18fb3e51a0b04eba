"""What `kvmesh simulate` can be told, and what of it makes no sense."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter, Token

from kvmesh.app.serve.formula_file import load_formulas
from kvmesh.core.admission.ledger import DEFAULT_QUANTUM
from kvmesh.core.admission.queue import QueueFairness, QueuePolicy
from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.targets import Targets
from kvmesh.settings.roles import WARM_SHARE
from kvmesh_lab.mocker.model.lower_tiers import TierOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import parse_profile
from kvmesh_lab.replay.options import ReplayOptions, Words
from kvmesh_lab.report.statistics import Slo
from kvmesh_lab.simulator.fleet.faults import parse_fleet_faults, parse_slow_downs
from kvmesh_lab.simulator.fleet.options import FleetOptions, PeerOptions
from kvmesh_lab.simulator.fleet.timetable import Timetable, parse_timetable
from kvmesh_lab.simulator.model_profiles import EngineSize, engine_size

DEFAULT_LOADS: Final = (0.5, 0.9, 1.2, 1.5)
LONG_RUN: Final = 3_000
"""Requests that a load above 1 is played with at least: in shorter runs the queue is young."""

DEFAULT_LIVE: Final = (8.0,)
"""Live sessions an engine of a trace of sessions."""

DEFAULT_POLICIES: Final = (
    "round-robin",
    "kv:predicted-time",
    "kv:prefill-decode",
    "kv:dynamo",
    "kv:lmetric",
    "kv:preble",
    "kv:sglang",
)


def split_numbers(_: type, tokens: Sequence[Token]) -> tuple[float, ...]:
    """Return the numbers of one or several comma-separated values. Raises `ValueError`."""
    return tuple(float(word) for token in tokens for word in token.value.split(",") if word)


Numbers = Annotated[tuple[float, ...], Parameter(converter=split_numbers)]


@dataclass(frozen=True)
class SimulateOptions:
    """One simulation. `trace` is all that most need.

    A dataclass, since the command line is made from it.
    """

    trace: Path
    """Trace file in Mooncake's format or of sessions, JSON lines, gzip or plain."""
    _: KW_ONLY
    policy: Words = DEFAULT_POLICIES
    """Policies side by side, the first is the baseline: round-robin, random, least-loaded,
    power-of-two, kv, kv:COST, kv:COST:name=number (e.g. kv:dynamo:overlap_score_weight=2);
    kv:FILE.py:FUNCTION is a formula of your own; oracle sees into the engines, to show what perfect
    knowledge would be worth."""
    tune: str | None = None
    """Search the weights of this formula (a name, or FILE.py:FUNCTION) on the first part of the
    slice, compare on the rest."""
    train_share: float = 0.5
    """Part of the slice to search on."""
    engines: int = 8
    """Simulated engines."""
    routers: int = 1
    """Router replicas; requests are spread over them."""
    load: Numbers = DEFAULT_LOADS
    """Loads, relative to the rate at which round robin saturates. For loads above 1 a trace of
    fewer than 3,000 requests begins again, with fresh prompts, unless --requests says how many."""
    rate: Numbers = ()
    """Requests per second instead of relative loads."""
    live: Numbers = ()
    """Closed loop instead: so many sessions under way for each engine, the next begins as one ends.
    Of a trace of sessions: 8 by default."""
    sessions: int | None = None
    """Of a trace of sessions: how many to play, with their sub-agents; default: all. Beyond its end
    it begins again with fresh ones."""
    program_turns: Words = ("off",)
    """Whether programs take turns that fit the caches, under policies of mode kv: on, off, or
    off,on to compare both."""
    re_touch: bool = False
    """Have routers remind engines of contexts that are about to be evicted, where programs take
    turns."""
    time_scale: float = 1.0
    """Multiplies recorded times and pauses; else pauses are as recorded at any load."""
    event_delay_ms: float = 5.0
    """How long KV events take to reach the routers, ms."""
    sync_delay_ms: float = 5.0
    """How long bookings take to reach the other replicas, ms."""
    max_backlog_ms: float = 0.0
    """Routers hold requests while their worker's predicted backlog is longer, ms; 0: never."""
    queue_policy: QueuePolicy = "fcfs"
    """Order of held requests: fcfs, or wspt (little work first)."""
    queue_fairness: QueueFairness = "tokens"
    """How tenants of the trace share while requests are held: tokens or locality."""
    quantum_tokens: int = DEFAULT_QUANTUM
    """Tokens a tenant may be ahead of another by: per turn, and per round under locality."""
    kv_events: bool = True
    """Route by KV events; without them by what was sent where."""
    block_size: Annotated[int | None, Parameter(name=("--kv-cache-block-size", "--block-size"))] = (
        None
    )
    """Tokens per engine block, a divisor of the trace's; default: the trace's (quickest)."""
    model_profile: str | None = None
    """Model and GPUs, which say how much KV cache an engine has: 8b-1xh100 (442k tokens),
    70b-2xh100 (236k), 70b-4xh100 (472k), dynamo-mocker (1,049k), or a file, FILE.json. Default:
    8b-1xh100, with --timing-profile preble-70b 70b-2xh100."""
    blocks: Annotated[int | None, Parameter(name=("--num-gpu-blocks", "--blocks"))] = None
    """KV blocks of an engine; default: those of the model profile."""
    sliding_window: int = 0
    """Engines of a hybrid model, with groups of so many tokens beside full attention; 0: none."""
    window_groups: int = 1
    """Groups of sliding windows, with --sliding-window."""
    mamba_groups: int = 0
    """Engines of a hybrid model, with so many groups of mamba states beside full attention."""
    max_loras: int = 0
    """LoRA adapters (`lora` of the trace's requests) that an engine holds ready; 0: all."""
    lora_load_ms: float = 100.0
    """How long an engine takes to load another adapter, ms, with --max-loras."""
    max_num_seqs: int = 256
    """Requests an engine runs at once."""
    max_num_batched_tokens: int = 8192
    """Tokens an engine computes in one step."""
    host_blocks: int = 0
    """Blocks of host memory below each engine's KV cache, to which every full block is copied."""
    host_gbps: float = 40.0
    """Gigabytes per second at which blocks come back from there."""
    disk_blocks: int = 0
    """Blocks of disk below that, for what host memory has no room for."""
    disk_gbps: float = 4.0
    """The same from disk."""
    peer_gbps: float = 0.0
    """Gigabytes per second at which an engine takes blocks from another's cache; 0: it cannot."""
    fetch_latency_ms: float = 5.0
    """How long it takes until the first block from host memory, disk or a peer comes, ms."""
    kv_bytes_per_token: int | None = None
    """KV cache of a token, bytes; default: those of the model profile, 128 KiB for Llama 3 8B."""
    timing_profile: str | None = None
    """How long a step takes: dynamo, preble-70b, linear, instant, FILE.json; or
    NAME,coefficient=ms,… Default: that of the model profile."""
    engine_speeds: Numbers = (1.0,)
    """Speeds of the engines in turn, relative to the profile, e.g. 1,1,1,0.5."""
    join: Words = ()
    """[WHO@]SECONDS, repeatable: an engine, by its number from 0, is a member from that second of
    the run on; without WHO the one of the highest number; e.g. 120, or 3@120,4@200."""
    leave: Words = ()
    """[WHO@]SECONDS, repeatable: an engine gets nothing new from that second on."""
    warm_share: Numbers = (WARM_SHARE,)
    """Share of the fleet's prefill that may go into prefixes for engines that join, before they
    serve, and into those that only one that leaves keeps, under policies of mode kv; 0: none;
    0,0.03 to compare both."""
    sites: int = 1
    """Sites, each of --engines: who serves a request where, at --rate, by three rules: nearest,
    SkyWalker's, kvmesh's. TRACE `conversations` makes some up."""
    site_rtt_ms: Numbers = (80.0,)
    """Round trips between sites, ms: of each pair, e.g. 30,80,150 (first and second, first and
    third, second and third), or one for all."""
    site_load: Numbers = ()
    """How many clients are near each site, as shares, e.g. 8,1,1; default: as many near each."""
    prefill_engines: int = 0
    """The first so many engines prefill for the others, which can do whole requests, too."""
    prefill_threshold: int = 256
    """Prompts with fewer uncached tokens at an engine that does all of it stay there."""
    split_share: float | None = None
    """Share of the other prompts that are prefilled elsewhere; default: those for which it costs
    less."""
    transfer_ms: float = 2.0
    """How long moving a prompt's KV cache between engines takes, ms …"""
    transfer_ms_per_token: float = 0.005
    """… and for each token of it more, ms."""
    fail: Words = ()
    """WHO=SHARE:KIND[=VALUE], repeatable: a share (0 to 1) of what an engine is sent meets a fault.
    WHO is its number from 0 (3, w3, worker-3) or all. KIND is a status of 400 to 599, dead (500),
    reset, garbage, half-head, or one of the mocker's bad answers, e.g. empty-body (these fail at
    once), hang (no answer until the client leaves), slow=10 (seen 10 times as late) or cut (after
    half of the tokens); e.g. w3=0.3:500."""
    flap: str = ""
    """GOOD:BAD in seconds, e.g. 2:2: good and bad phases take turns, faults apply in bad ones."""
    slow: Words = ()
    """WHO=FACTOR[@FROM[-UNTIL]], repeatable: an engine, or all, takes so many times as long for
    each step, from a second of the run until another; e.g. 0=10, or all=5@60-120."""
    retries: int = 2
    """Further engines tried, one by one, when an answer fails before it begins (429, 500, 502, 503,
    504, dead, reset, garbage, half-head, bad answers)."""
    client_timeout_ms: float = 60_000.0
    """How long a client waits for an answer that never comes, ms."""
    trace_block_size: int | None = None
    """Tokens a hash id stands for; default: from the file name (…_b512.jsonl), else inferred."""
    requests: int | None = None
    """Requests to play; default: all. Beyond the trace's end it begins again, with fresh prompts
    but the same system prompts."""
    skip: int = 0
    """Requests (of a trace of sessions: sessions) at the start of the trace to leave out."""
    smooth: bool = True
    """Spread times that were rounded (Mooncake: to 3 s) over the rounding interval."""
    max_input_tokens: int | None = None
    """Longest prompt, tokens; longer ones are cut at their end."""
    output_tokens: int | None = None
    """Longest answer, tokens."""
    tell_output_lengths: bool = False
    """Tell routers how long each answer will be, as if every client did."""
    tell_final: bool = False
    """Tell routers of a session's last turn that it is, as if every client did."""
    seed: int = 0
    """Seed of everything random. The same seed gives the same figures."""
    slo_ttft_ms: float = 2_000.0
    """Goodput counts requests whose first token came within so many ms …"""
    slo_itl_ms: Annotated[float, Parameter(alias="--slo-tpot-ms")] = 100.0
    """… and whose time per further token was at most this, ms."""
    tell_targets: bool = False
    """Have each request ask for these times: routers refuse what cannot be served within them."""
    capacity: bool = False
    """Search instead the largest load at which --capacity-share of all requests keep the SLO:
    requests a second, of sessions in closed loop live ones an engine."""
    capacity_share: float = 0.9
    """Share of all requests that must keep it, those that fail counted as misses."""
    details: bool = False
    """Print every metric and who served what, not only the comparison."""
    json: Path | None = None
    """Write summaries and every request as JSON."""
    csv: Path | None = None
    """Write one line per request as CSV."""
    html: Path | None = None
    """Write a self-contained HTML report per load, with plots (extra `plots`)."""
    plot: Path | None = None
    """Write the plots per load as .svg, .png or .pdf (extra `plots`)."""
    progress: bool = True
    """Show a progress bar on a terminal."""

    def slo(self) -> Slo:
        """Return the bounds goodput is counted at."""
        return Slo(ttft_ms=self.slo_ttft_ms, itl_ms=self.slo_itl_ms)

    def reading(self) -> ReplayOptions:
        """Return how the trace is read."""
        return ReplayOptions(
            self.trace,
            trace_block_size=self.trace_block_size,
            requests=self.requests,
            repeat=True,
            sessions=self.sessions,
            time_scale=self.time_scale,
            skip=self.skip,
            smooth=self.smooth,
            max_input_tokens=self.max_input_tokens,
            output_tokens=self.output_tokens,
            seed=self.seed,
        )

    def fleet(self, trace_block_size: int) -> FleetOptions:
        """Return the fleet for a trace of such blocks. Raises `ConfigError`."""
        block_size = self.block_size or trace_block_size
        size = self.size()
        members = self.timetable()
        engine = EngineOptions(
            block_size=block_size,
            num_gpu_blocks=self.blocks or max(2, size.tokens // block_size),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            sliding_window=self.sliding_window,
            window_groups=self.window_groups,
            mamba_groups=self.mamba_groups,
            max_loras=self.max_loras,
            lora_load_ms=self.lora_load_ms,
            timing=parse_profile(size.timing),
            tiers=self._tiers(block_size),
        )
        return FleetOptions(
            engines=self.engines,
            routers=self.routers,
            engine=engine,
            speed_ratios=self.engine_speeds,
            prefillers=self.prefill_engines,
            prefill_threshold=self.prefill_threshold,
            split_share=self.split_share,
            transfer_ms=self.transfer_ms,
            transfer_ms_per_token=self.transfer_ms_per_token,
            event_delay_s=self.event_delay_ms / 1000.0,
            sync_delay_s=self.sync_delay_ms / 1000.0,
            kv_events=self.kv_events,
            max_backlog_ms=self.max_backlog_ms,
            queue_policy=self.queue_policy,
            queue_fairness=self.queue_fairness,
            quantum_tokens=self.quantum_tokens,
            seed=self.seed,
            faults=parse_fleet_faults(self.fail, self.flap, self.engines),
            slow_downs=parse_slow_downs(self.slow, self.engines),
            retries=self.retries,
            client_timeout_s=self.client_timeout_ms / 1000.0,
            peer=self._peer(block_size),
            tells_lengths=self.tell_output_lengths,
            tells_final=self.tell_final,
            targets=Targets(self.slo_ttft_ms, self.slo_itl_ms) if self.tell_targets else None,
            joins=members.joins,
            leaves=members.leaves,
        )

    def timetable(self) -> Timetable:
        """Return which engines join and leave when. Raises `ConfigError`."""
        if not (self.join or self.leave):
            return Timetable(max(1, self.engines))
        return parse_timetable(self.join, self.leave, self.engines, self.prefill_engines)

    def size(self) -> EngineSize:
        """Return what the profiles say of an engine. Raises `ConfigError`."""
        return engine_size(self.model_profile, self.timing_profile)

    def _tiers(self, block_size: int) -> tuple[TierOptions, ...]:
        """Return the memory below an engine's device."""
        sizes = ((self.host_blocks, self.host_gbps), (self.disk_blocks, self.disk_gbps))
        return tuple(
            TierOptions(blocks, self._block_ms(block_size, gbps), self.fetch_latency_ms)
            for blocks, gbps in sizes
            if blocks
        )

    def _peer(self, block_size: int) -> PeerOptions | None:
        """Return how engines take blocks from each other, None if they do not."""
        if not self.peer_gbps:
            return None
        return PeerOptions(self._block_ms(block_size, self.peer_gbps), self.fetch_latency_ms)

    def _block_ms(self, block_size: int, gbps: float) -> float:
        kv_bytes = self.kv_bytes_per_token or self.size().kv_bytes_per_token
        return block_size * kv_bytes / (gbps * 1e6)

    def formulas(self) -> Formulas:
        """Return the formulas that the policies may name, read anew. Raises `ConfigError`."""
        return load_formulas((*self.policy, self.tune or ""))
