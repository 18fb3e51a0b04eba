"""`kvmesh simulate --sites 3`: one load, played by each rule of who serves a request where."""

import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final, get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvmesh.bounds import counted
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.sites.sites import MOST_SITES
from kvmesh.errors import ConfigError
from kvmesh_lab.replay.plan import TraceSlice
from kvmesh_lab.report.outcome import Distribution, distribution
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.simulator.options import DEFAULT_LOADS, DEFAULT_POLICIES, SimulateOptions
from kvmesh_lab.simulator.sites.homes import TraceHomes
from kvmesh_lab.simulator.sites.workload import BLOCK, Conversation, Load, make_conversations
from kvmesh_lab.simulator.sites.world import Rule, World, WorldOptions

CONVERSATIONS: Final = Path("conversations")
"""Named in place of a trace: conversations that are made up, half of them with one of a few system
prompts that all sites have in common.
"""

RULES: Final[tuple[Rule, ...]] = get_args(Rule)
MOST_RTT_MS: Final = 10_000.0
YOUNG: Final = 0.1
"""What is sent in this first part of a run does not count: caches are empty."""

_ALONE: Final = (
    *("tune", "live", "fail", "slow", "join", "leave", "capacity", "re_touch", "details"),
    *("json", "csv", "html", "plot"),
)
"""Options that do not go with sites."""


class SiteFigures(msgspec.Struct, frozen=True):
    """What became of the turns of one run: times to the first token at the client, ms, network
    included; shares of turns served at another site than the client's, of cached prompt tokens.
    """

    rule: Rule
    turns: int
    failed: int
    ttft: Distribution | None
    away: float
    hit_rate: float


def site_figures(world: World, from_s: float) -> SiteFigures:
    """Return the figures of what was sent from then on."""
    kept = [one for one in world.played if one.sent_s >= from_s]
    served = [one for one in kept if not one.failed]
    tokens = sum(one.prompt_tokens for one in served)
    return SiteFigures(
        rule=world.rule,
        turns=len(kept),
        failed=len(kept) - len(served),
        ttft=distribution(one.ttft_ms for one in served),
        away=sum(one.home != one.site for one in kept) / max(1, len(kept)),
        hit_rate=sum(one.cached_tokens for one in served) / max(1, tokens),
    )


def check_sites(options: SimulateOptions) -> None:
    """Refuse what makes no sense of sites. Raises `ConfigError`."""
    given, default = f"--sites {options.sites}", SimulateOptions(options.trace)
    if not 1 <= options.sites <= MOST_SITES:
        raise ConfigError(f"{given}: from 1 to {MOST_SITES}")
    for name in _ALONE:
        if getattr(options, name) != getattr(default, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{given} {flag}: sites are played without; leave one of both out")
    if not options.rate or options.load != DEFAULT_LOADS:
        raise ConfigError(f"{given}: say by --rate how many requests a second all get, no --load")
    if options.policy != DEFAULT_POLICIES and len(options.policy) > 1:
        raise ConfigError(f"{given} --policy {','.join(options.policy)}: name one, of each site")
    round_trips(options)
    shares = options.site_load
    right = all(0.0 <= one < inf for one in shares) and sum(shares, 0.0) > 0.0
    if shares and not (right and len(shares) == options.sites):
        found = ",".join(f"{one:g}" for one in shares)
        raise ConfigError(
            f"--site-load {found}: write {options.sites} shares, 0 or more and not all 0, "
            "e.g. 8,1,1"
        )


def round_trips(options: SimulateOptions) -> list[list[float]]:
    """Return the round trips between sites, ms, of (a-b, a-c, b-c, …) or one for all pairs.

    Raises `ConfigError`.
    """
    sites, given = options.sites, options.site_rtt_ms
    pairs = [(one, other) for one in range(sites) for other in range(one + 1, sites)]
    wrong = not all(0.0 <= one <= MOST_RTT_MS for one in given)
    if wrong or len(given) not in (1, len(pairs)):
        found = ",".join(f"{one:g}" for one in given)
        raise ConfigError(
            f"--site-rtt-ms {found}: write one of 0 to {MOST_RTT_MS:,.0f} ms, or one for each "
            f"of the {counted(len(pairs), 'pair')} of {sites} sites, e.g. 30,80,150 for three"
        )
    rtt_ms = [[0.0] * sites for _ in range(sites)]
    for number, (one, other) in enumerate(pairs):
        rtt_ms[one][other] = rtt_ms[other][one] = given[number % len(given)]
    return rtt_ms


def made_up(options: SimulateOptions) -> bool:
    """Return whether conversations are made up in place of a trace's."""
    return options.sites > 1 and options.trace == CONVERSATIONS and not options.trace.exists()


class SitePlayer:
    """Plays a trace, or conversations that are made up where there is none, by every rule."""

    def __init__(self, options: SimulateOptions, trace: TraceSlice | None) -> None:
        self._options = options
        self._shares = options.site_load or (1.0,) * options.sites
        self._trace = trace
        fleet = options.fleet(trace.block_size if trace else BLOCK)
        size = fleet.engine.block_size
        if trace is None and size != BLOCK:
            raise ConfigError(f"--block-size {size}: {CONVERSATIONS} have blocks of {BLOCK} tokens")
        if trace and any(one.after is not None for one in trace.requests):
            raise ConfigError(f"--sites: {trace.source} has sub-agents; take one without")
        policy = options.policy[0] if options.policy != DEFAULT_POLICIES else "kv"
        routed = parse_policy(policy, size, options.formulas())
        self.world = WorldOptions(fleet, round_trips(options), policy=routed)

    def play(self, rate: float) -> list[SiteFigures]:
        """Return what each rule comes to at so many requests a second, over all sites."""
        conversations = self.conversations(rate)
        last_s = max(one.begins_s for one in conversations)
        found: list[SiteFigures] = []
        for rule in RULES:
            world = World(self.world, rule, self._options.seed)
            world.run(conversations)
            found.append(site_figures(world, YOUNG * last_s))
        return found

    def conversations(self, rate: float) -> list[Conversation]:
        """Return what is sent at so many requests a second."""
        options, trace = self._options, self._trace
        if trace is not None:
            recorded_s = max(one.timestamp_ms for one in trace.requests) / 1000.0
            size = self.world.fleet.engine.block_size
            requests = make_requests(trace.requests, trace.block_size, size)
            speedup = rate * max(recorded_s, 0.001) / len(requests)
            homes = TraceHomes(self._shares, options.seed, size)
            return homes.conversations(requests, speedup)
        load = Load([one / sum(self._shares) for one in self._shares])
        seconds = options.requests / rate if options.requests else load.seconds
        rates = [rate * one / load.turns for one in load.rates]
        load = msgspec.structs.replace(load, rates=rates, seconds=seconds)
        made = make_conversations(load, options.seed)
        if not made:
            raise ConfigError(f"--rate {rate:g}: nobody asks within {seconds:g} s; name more")
        return made


def simulate_sites(
    options: SimulateOptions, trace: TraceSlice | None, console: Console, shown: Console
) -> list[list[SiteFigures]]:
    """Play every rule at every rate and print how they compare; return the figures of each rate.

    Raises `ConfigError` before anything is simulated.
    """
    player = SitePlayer(options, trace)
    began_s = time.process_time()
    fleet, source = player.world.fleet, CONVERSATIONS if trace is None else trace.source
    shares = options.site_load or (1.0,) * options.sites
    lines = {
        "trace": str(source),
        "sites": f"{options.sites} of {counted(fleet.engines, 'engine')} each, round trips of "
        f"{','.join(f'{one:g}' for one in options.site_rtt_ms)} ms, clients near them "
        f"{':'.join(f'{one:g}' for one in shares)}",
        "seed": str(options.seed),
    }
    for name, value in lines.items():
        console.print(f"{name:10} {value}", soft_wrap=True, highlight=False)
    found = [player.play(rate) for rate in options.rate]
    for rate, figures in zip(options.rate, found, strict=True):
        console.print(site_table(f"{rate:g} requests/s over all sites", figures))
    turns = sum(one.turns for figures in found for one in figures)
    speed = turns / max(time.process_time() - began_s, 1e-9)
    shown.print(f"simulated {speed:,.0f} requests/s of processor time", highlight=False)
    return found


def site_table(title: str, found: Sequence[SiteFigures]) -> Table:
    """Return one row per rule; the ratio of medians is against the first."""
    table = Table(
        title=f"{title}; times in ms, ratio against {found[0].rule}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0),
        pad_edge=False,
    )
    table.add_column("rule")
    for name in (
        "TTFT\np50",
        "\nratio",
        "TTFT\np90",
        "TTFT\np99",
        "over-\nseas",
        "hit\nrate",
        "lost",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        if one.ttft is None or found[0].ttft is None:
            table.add_row(one.rule, *["-"] * 6, f"{one.failed:,}")
            continue
        table.add_row(
            one.rule,
            f"{one.ttft.p50:,.0f}",
            f"x{one.ttft.p50 / max(found[0].ttft.p50, 1e-9):.2f}",
            f"{one.ttft.p90:,.0f}",
            f"{one.ttft.p99:,.0f}",
            f"{one.away:.1%}",
            f"{one.hit_rate:.1%}",
            f"{one.failed:,}",
        )
    return table
