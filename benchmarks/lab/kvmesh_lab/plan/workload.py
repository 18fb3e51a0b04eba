"""What a fleet is planned for: the requests of a trace or of a router's log, and what the log tells
of how they went.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.bounds import MAX_FIGURE, MAX_TOKENS, UNREADABLE, Tokens
from kvmesh.bounds import Figure as Number
from kvmesh.core.insight.weight_search import LoggedFleet
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.plan.kinds import MOST_ENGINES
from kvmesh_lab.plan.targets import FIGURES, Figure
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import TraceSlice, load_slice, read_lines
from kvmesh_lab.simulator.fleet.oracle import idle_ttft_ms
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.traces.trace import TraceRequest

SHIFT_GAPS: Final = 4.0
"""A seed moves each arrival by up to so many mean gaps, so that others meet than were recorded."""

WARM_SHARE: Final = 0.1
"""Of a trace that does not tell what was cached the first requests only fill the caches."""

WARM_USE: Final = 0.5
"""How busy engines are while caches are filled with what a log's first requests found in them."""


LEAST_SPEED: Final = 0.001
"""Workers differ by less than this in speed."""


class Went(msgspec.Struct, frozen=True):
    """How one logged request went; times in ms, None: it had none."""

    cached_tokens: Tokens = 0
    ttft_ms: Number | None = None
    tpot_ms: Number | None = None
    latency_ms: Number | None = None
    kvmesh: LoggedFleet | None = None

    def times(self) -> tuple[float | None, ...]:
        """Return the times in the order of `FIGURES`."""
        return self.ttft_ms, self.tpot_ms, self.latency_ms


class Workload(msgspec.Struct, frozen=True):
    """The requests; of a router's log also how each `went`, by index, and what served them.

    `share` of the load is in it: a log may lack other replicas' requests.
    """

    trace: TraceSlice
    went: Mapping[int, Went]
    fleet: LoggedFleet | None = None

    @property
    def share(self) -> float:
        """Return which part of the load the requests are."""
        return self.fleet.share if self.fleet is not None else 1.0

    @property
    def seconds(self) -> float:
        """Return how long the requests took to come."""
        return max(0.001, max(one.timestamp_ms for one in self.trace.requests) / 1000.0)

    @property
    def tokens_per_s(self) -> float:
        """Return the prompt tokens that came in a second, of the whole load."""
        tokens = sum(one.input_tokens for one in self.trace.requests)
        return tokens / self.seconds / self.share

    def measured(self) -> dict[Figure, list[float]]:
        """Return the measured times of each figure, ms; none of a plain trace."""
        found: dict[Figure, list[float]] = {name: [] for name in FIGURES}
        for one in self.went.values():
            for name, ms in zip(FIGURES, one.times(), strict=True):
                if ms is not None:
                    found[name].append(ms)
        return found


def read_workload(options: ReplayOptions) -> Workload:
    """Read a trace or a log. Raises `ConfigError`."""
    trace = load_slice(options)
    lines = [line for line in read_lines(options.trace) if line.strip()]
    if b'"kvmesh"' not in lines[0]:
        return Workload(trace, {})
    place = f"{options.trace}:"
    fleet = _read(lines[0], f"{place}1").kvmesh
    if fleet is None or not _is_fleet(fleet):
        raise ConfigError(f"{place}1: field kvmesh tells of no fleet that can have served this log")
    if fleet.obstacle:
        raise ConfigError(f"{options.trace}: this fleet cannot be simulated: {fleet.obstacle}")
    indices = {one.index for one in trace.requests}
    went = {
        number: _read(line, f"{place}{number + 1}")
        for number, line in enumerate(lines)
        if number in indices
    }
    return Workload(trace, went, fleet)


def _is_fleet(logged: LoggedFleet) -> bool:
    """Return whether there is such a fleet: a file may say anything."""
    facts = logged.fleet
    times = facts.prefill_fixed_ms, facts.prefill_token_ms, facts.output_token_ms
    return (
        0.0 < logged.share <= 1.0
        and 1 <= len(facts.speeds) <= MOST_ENGINES
        and all(LEAST_SPEED <= one <= 1.0 / LEAST_SPEED for one in facts.speeds)
        and all(0.0 <= one < MAX_FIGURE for one in (*times, facts.max_backlog_ms))
        and 1 <= facts.block_size <= MAX_TOKENS
        and 0 <= facts.blocks <= MAX_TOKENS
        and 1 <= facts.replicas <= MOST_ENGINES
    )


def _read(line: bytes, place: str) -> Went:
    try:
        return msgspec.json.decode(line, type=Went)
    except UNREADABLE as error:
        raise ConfigError(f"{place}: {error}") from error


class Course:
    """Makes of a workload what one play sends: what fills the caches, then the requests."""

    def __init__(self, workload: Workload, block_size: int) -> None:
        """Raises `ConfigError` where the block sizes do not fit. O(blocks)."""
        trace = workload.trace
        self._warm = _warming(trace.requests, trace.block_size, workload.went)
        self._made = make_requests((*self._warm, *trace.requests), trace.block_size, block_size)
        gap_ms = workload.seconds * 1000.0 / len(trace.requests)
        self._shift_ms = SHIFT_GAPS * gap_ms
        skipped = 0 if workload.went else int(WARM_SHARE * len(trace.requests))
        self.counted = frozenset(one.index for one in trace.requests[skipped:])
        """The requests that are judged, by index."""

    def warm_s(self, engines: Sequence[EngineOptions]) -> tuple[float, float]:
        """Return how long filling the caches takes, and what all engines compute for it, s."""
        if not self._warm:
            return 0.0, 0.0
        slowest = max(engines, key=lambda one: idle_ttft_ms(one, 1) / one.speedup_ratio)
        work_s = sum(
            idle_ttft_ms(slowest, one.input_tokens) / slowest.speedup_ratio for one in self._warm
        )
        return work_s / 1000.0 / WARM_USE / len(engines), work_s / 1000.0

    def requests(self, seed: int, warm_s: float, speedup: float) -> tuple[FleetRequest, ...]:
        """Return what is sent at `speedup`: the requests begin after `warm_s`; seed 0 sends them as
        they were recorded.
        """
        rng = random.Random(seed)  # noqa: S311  a simulation, not a secret
        begin_ms = warm_s * 1000.0 * speedup
        count = len(self._warm)
        times = [begin_ms * place / max(1, count) for place in range(count)]
        for one in self._made[count:]:
            moved_ms = rng.uniform(-self._shift_ms, self._shift_ms) if seed else 0.0
            times.append(begin_ms + max(0.0, one.trace.timestamp_ms + moved_ms))
        return tuple(
            msgspec.structs.replace(
                one, trace=msgspec.structs.replace(one.trace, timestamp_ms=time_ms)
            )
            for one, time_ms in zip(self._made, times, strict=True)
        )


def _warming(
    requests: Sequence[TraceRequest], block_size: int, went: Mapping[int, Went]
) -> tuple[TraceRequest, ...]:
    """Return requests for what was cached before the log began, as its first users found it.

    They have negative indices and answers of one token.
    """
    seen: set[int] = set()
    made: list[TraceRequest] = []
    for one in requests:
        found = went.get(one.index)
        held = one.block_ids[: (found.cached_tokens // block_size) if found else 0]
        if not seen.issuperset(held):
            made.append(
                TraceRequest(-1 - len(made), 0.0, len(held) * block_size, 1, held, lora=one.lora)
            )
        seen.update(one.block_ids)
    return tuple(made)
