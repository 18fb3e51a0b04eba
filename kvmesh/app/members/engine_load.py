"""What an engine says of its load when asked over HTTP."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.actors.messages import WorkerLoad
from kvmesh.bounds import MAX_COUNT, MAX_NAMES, real_number, whole_number
from kvmesh.core.engines.facts import METRICS, EngineFacts
from kvmesh.core.engines.load import MAX_RANKS, EngineFigures, Gauges
from kvmesh.core.engines.registry import ENGINES, UNKNOWN, engine_of
from kvmesh.core.members.worker_info import as_count, as_share
from kvmesh.errors import CodecError
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

_GAUGES = {
    name: found for engine in (*ENGINES.values(), UNKNOWN) for name, found in engine.gauges.items()
}
_WANTED = tuple(_GAUGES)
_TIMED = tuple(
    name for name, gauges in _GAUGES.items() if any(one.figure == "adapters" for one in gauges)
)

MAX_LINES: Final = 8 * MAX_RANKS
MAX_LINE: Final = 4096
"""Lines of figures that are read of one page, and characters of each: 30 us a line."""


async def read_loads(pool: UpstreamPool, url: str, facts: EngineFacts) -> dict[int, WorkerLoad]:
    """Return each rank's load by the page its engine has for it; empty when it says nothing."""
    read = engine_of(facts.kind).read_loads
    if facts.load_path == METRICS or read is None:
        loads = {rank: load_of(one) for rank, one in (await read_gauges(pool, url)).items()}
        if facts.prompt_slots:
            loads[0] = msgspec.structs.replace(
                loads.get(0, WorkerLoad()),
                prompt_slots=as_count(facts.prompt_slots),
                slot_tokens=as_count(facts.slot_tokens),
            )
        return loads
    page = await fetch_ok(pool, url, facts.load_path)
    try:
        figures = read(page or b"")
    except CodecError:
        return {}
    return {rank: load_of_figures(one, facts.block_size) for rank, one in figures.items()}


def load_of_figures(figures: EngineFigures, block_size: int) -> WorkerLoad:
    """Return figures in tokens as a heartbeat carries them, each within what one may carry."""
    size, waiting = max(1, block_size), figures.waiting_tokens
    return WorkerLoad(
        running_requests=as_count(figures.running_requests),
        waiting_requests=as_count(figures.waiting_requests),
        used_blocks=as_count(figures.used_tokens // size),
        total_blocks=as_count(figures.total_tokens // size),
        waiting_tokens=None if waiting is None else as_count(waiting),
        prefilled_tokens=as_count(figures.prefilled_tokens),
        prefill_busy_us=as_count(figures.prefill_busy_us),
        total_slots=as_count(figures.total_slots),
        prefix_hit_rate=as_share(figures.prefix_hit_rate),
        adapter_slots=as_count(figures.adapter_slots) or msgspec.UNSET,
        computed_tokens=_reported(figures.computed_tokens),
    )


async def read_gauges(pool: UpstreamPool, url: str) -> dict[int, Gauges]:
    """Return the load figures on /metrics per rank; empty when there are none."""
    body = await fetch_ok(pool, url, METRICS)
    return parse_gauges(body.decode(errors="replace")) if body else {}


def parse_gauges(page: str) -> dict[int, Gauges]:
    """Return the load figures of an engine's Prometheus page, whatever its kind, per rank."""
    ranks: dict[int, Gauges] = {}
    lines = (line for line in page.splitlines() if line.startswith(_WANTED))
    short = islice(_with_latest(line for line in lines if len(line) <= MAX_LINE), MAX_LINES)
    try:
        families = list(text_string_to_metric_families("\n".join(short) + "\n"))
    except (ValueError, IndexError, KeyError):
        return {}
    for family in families:
        for sample in family.samples:
            label = sample.labels.get("engine") or sample.labels.get("dp_rank") or "0"
            number = whole_number(label, 0, MAX_RANKS - 1)
            rank = ranks.setdefault(number or 0, Gauges())
            for gauge in _GAUGES.get(sample.name, ()):
                rank.take(gauge, sample.value, sample.labels)
    return ranks


def _with_latest(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, of each series whose values are times only the latest.

    An engine may have one for each set of adapters that ever ran together.
    """
    latest: dict[str, tuple[float, str]] = {}
    for line in lines:
        name = next((one for one in _TIMED if line.startswith(one)), "")
        if not name:
            yield line
            continue
        at_s = real_number(line.rpartition(" ")[2], 0.0, MAX_COUNT) or 0.0
        if at_s >= latest.get(name, (0.0, ""))[0]:
            latest[name] = at_s, line
    yield from (line for _, line in latest.values())


def load_of(gauges: Gauges) -> WorkerLoad:
    """Return the figures as a heartbeat carries them; capacity may be counted in tokens."""
    blocks = gauges.total_blocks or gauges.total_tokens // max(1, gauges.block_size)
    return WorkerLoad(
        running_requests=int(gauges.running),
        waiting_requests=int(gauges.waiting),
        used_blocks=int(gauges.usage * blocks),
        total_blocks=blocks,
        cache_queried_tokens=gauges.queried_tokens,
        cache_hit_tokens=gauges.hit_tokens,
        adapter_slots=gauges.adapter_slots or msgspec.UNSET,
        adapters=_names_of(gauges) if gauges.adapter_slots else msgspec.UNSET,
        computed_tokens=_reported(gauges.computed_tokens),
    )


def _reported(count: int | None) -> int | msgspec.UnsetType:
    return msgspec.UNSET if count is None else count


def _names_of(gauges: Gauges) -> tuple[str, ...]:
    """Return the adapters in use, each once."""
    names = dict.fromkeys(name for names in gauges.adapters.values() for name in names)
    return tuple(islice(names, MAX_NAMES))
