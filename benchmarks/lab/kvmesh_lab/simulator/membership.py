"""What a simulated fleet feels of engines that join and leave it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from kvmesh_lab.report.outcome import RequestOutcome, percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet

FIRST_MS: Final = 60_000.0
"""A newcomer's first minute of serving; and what is compared before and after a leave."""

FELT_MS: Final = 75_000.0
"""From a join on the fleet's first tokens are looked at for so long."""

JOIN_HEAD: Final = (
    *("waits\ns", "warmed\ntokens", "its\nhits", "all\nhits", "ratio"),
    *("TTFT ms\np50", "p90", "p99", "Mtok\n75 s"),
)
"""Heads of the cells of `JoinSums`."""

LEAVE_HEAD: Final = (
    *("prefill/s\nbefore", "after", "share\nbefore", "after", "ratio"),
    *("TTFT ms\np99 before", "after"),
)
"""Heads of the cells of `LeaveSums`."""

NOTHING: Final = "-"


class Changes(msgspec.Struct, frozen=True):
    """Rows of one run: number and second of an engine that joined or left, and its cells."""

    setting: str
    policy: str
    joins: tuple[tuple[str, ...], ...] = ()
    leaves: tuple[tuple[str, ...], ...] = ()


class JoinSums(msgspec.Struct):
    """Sums over joins of one fleet: tokens of prompts and cached ones; first tokens, ms."""

    own: int = 0
    own_cached: int = 0
    fleet: int = 0
    fleet_cached: int = 0
    computed: int = 0
    waits_s: list[float] = []
    warmed: list[int] = []
    firsts: list[float] = []

    def add(self, fleet: SimulatedFleet, number: int, join_s: float) -> None:
        """Take in what became of one join; nothing of an engine that was never let in."""
        worker = fleet.engines[number].worker
        serves_s = fleet.joining.serves_s.get(worker)
        if serves_s is None:
            return
        self.waits_s.append(serves_s - join_s)
        self.warmed.append(fleet.joining.warmed_tokens[worker])
        for one in sent_within(fleet.outcomes, serves_s * 1000.0, FIRST_MS):
            self.fleet += one.prompt_tokens
            self.fleet_cached += one.cached_tokens
            if one.worker == worker:
                self.own += one.prompt_tokens
                self.own_cached += one.cached_tokens
        for one in sent_within(fleet.outcomes, join_s * 1000.0, FELT_MS):
            self.computed += one.prompt_tokens - one.cached_tokens
            self.firsts.append(one.ttft_ms or 0.0)

    def cells(self) -> tuple[str, ...]:
        """Return the figures under `JOIN_HEAD`."""
        joins = len(self.waits_s)
        if not (self.own and self.firsts):
            return (NOTHING,) * len(JOIN_HEAD)
        own, fleet = self.own_cached / self.own, self.fleet_cached / self.fleet
        firsts = sorted(self.firsts)
        return (
            f"{sum(self.waits_s) / joins:.1f}",
            f"{sum(self.warmed) // joins:,}",
            f"{own:.3f}",
            f"{fleet:.3f}",
            f"{own / max(fleet, 1e-9):.2f}",
            *(f"{percentile(firsts, share):,.0f}" for share in (0.5, 0.9, 0.99)),
            f"{self.computed / joins / 1e6:.2f}",
        )


class _Span(msgspec.Struct):
    """What was sent within some seconds: tokens of prompts, computed ones, first tokens, ms."""

    seconds: float
    prompts: int = 0
    computed: int = 0
    firsts: list[float] = []

    def add(self, outcomes: Iterable[RequestOutcome]) -> None:
        for one in outcomes:
            self.prompts += one.prompt_tokens
            self.computed += one.prompt_tokens - one.cached_tokens
            self.firsts.append(one.ttft_ms or 0.0)

    def rate(self) -> str:
        return f"{self.computed / self.seconds:,.0f}"

    def share(self) -> float:
        return self.computed / self.prompts

    def p99(self) -> str:
        return f"{percentile(sorted(self.firsts), 0.99):,.0f}"


def leave_cells(outcomes: Sequence[RequestOutcome], leave_s: float) -> tuple[str, ...]:
    """Return the figures under `LEAVE_HEAD` of an engine that leaves: tokens that the fleet
    prefills a second, and of those of prompts, sent in the minute before and after.

    `ratio` is that of the shares: it does not count that more or fewer prompts came.
    """
    leave_ms = leave_s * 1000.0
    last_ms = max(one.sent_ms for one in outcomes)
    before = _Span(min(leave_ms, FIRST_MS) / 1000.0)
    after = _Span(min(last_ms - leave_ms, FIRST_MS) / 1000.0)
    before.add(sent_within(outcomes, leave_ms - FIRST_MS, FIRST_MS))
    after.add(sent_within(outcomes, leave_ms, FIRST_MS))
    if not (before.computed and after.prompts and after.seconds):
        return (NOTHING,) * len(LEAVE_HEAD)
    return (
        before.rate(),
        after.rate(),
        f"{before.share():.3f}",
        f"{after.share():.3f}",
        f"{after.share() / before.share():.2f}",
        before.p99(),
        after.p99(),
    )


def changes_of(setting: str, policy: str, fleet: SimulatedFleet) -> Changes:
    """Return what a run felt of each engine that joined or left."""
    joins: list[tuple[str, ...]] = []
    for number, join_s in fleet.options.joins:
        sums = JoinSums()
        sums.add(fleet, number, join_s)
        joins.append((f"{number}@{join_s:g}", *sums.cells()))
    leaves = [
        (f"{number}@{leave_s:g}", *leave_cells(fleet.outcomes, leave_s))
        for number, leave_s in fleet.options.leaves
    ]
    return Changes(setting, policy, tuple(joins), tuple(leaves))


def sent_within(
    outcomes: Iterable[RequestOutcome], from_ms: float, for_ms: float
) -> Iterator[RequestOutcome]:
    """Yield the requests that were sent within so long."""
    return (one for one in outcomes if from_ms <= one.sent_ms < from_ms + for_ms)
