"""Request traces in Mooncake's format: one JSON object a line, equal hash ids = equal blocks."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median_high
from typing import Annotated, Final

import msgspec
import xxhash

from kvmesh.bounds import MAX_TOKENS, Figure, MaybeName, Tokens, counted
from kvmesh.core.programs.turn import Stop
from kvmesh.errors import ConfigError

COARSE_REQUESTS_PER_TIME: Final = 2
"""A trace with at least so many requests per distinct time was rounded (Mooncake: to 3 s)."""

MAX_UNHASHED_SHARE: Final = 0.5
"""More of the tokens outside any hash id means that the block size is wrong."""

_FORMAT: Final = (
    'expected {"timestamp": ms, "input_length": tokens, "output_length": tokens, '
    '"hash_ids": [int, ...]} and optionally "session_id", "delay", "tenant", "lora"'
)


class TraceRequest(msgspec.Struct, frozen=True):
    """One request of a trace. `index` is its place in the file, from 0.

    With `delay_ms` it starts so long after the turn before it of the same `session` ended, and
    `timestamp_ms` only places the session's first turn. A sub-agent's session has a `parent`, and
    its first turn starts `delay_ms` after the end of the request with index `after`. `program` is
    the session that all of it goes back to, `stop` why the answer was recorded to end.
    """

    index: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str = ""
    delay_ms: float | None = None
    tenant: str = ""
    lora: str = ""
    parent: str = ""
    program: str = ""
    stop: Stop = ""
    after: int | None = None


class _Line(msgspec.Struct, frozen=True):
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    output_length: Tokens
    hash_ids: tuple[int, ...]
    timestamp: Figure | None = None
    session_id: MaybeName | int | None = None
    delay: Figure | None = None
    tenant: MaybeName = ""
    lora: MaybeName = ""


_decoder = msgspec.json.Decoder(_Line)


def parse_trace(lines: Iterable[bytes], source: str) -> list[TraceRequest]:
    """Return the requests in order of time; blank lines are skipped.

    A later turn of a session may have `delay` instead of `timestamp`. An `output_length` of 0
    becomes 1, the least an engine generates.
    Raises `ConfigError` naming `source`, the line and what is wrong with it.
    """
    requests: list[TraceRequest] = []
    sessions: set[str] = set()
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        place = f"{source}:{number}"
        line = _decode(raw, place)
        session = "" if line.session_id is None else str(line.session_id)
        timestamp = line.timestamp
        if timestamp is None:
            if line.delay is None or session not in sessions:
                raise ConfigError(
                    f"{place}: no timestamp: only a later turn of a session, with session_id and "
                    "delay, may leave it out"
                )
            timestamp = requests[-1].timestamp_ms
        if session:
            sessions.add(session)
        request = TraceRequest(
            index=len(requests),
            timestamp_ms=timestamp,
            input_tokens=line.input_length,
            output_tokens=max(1, line.output_length),
            block_ids=line.hash_ids,
            session=session,
            delay_ms=line.delay if session else None,
            program=session,
            tenant=line.tenant,
            lora=line.lora,
        )
        requests.append(request)
    if not requests:
        raise ConfigError(f"{source}: no request in it; {_FORMAT}")
    return sorted(requests, key=lambda request: request.timestamp_ms)


def _decode(raw: bytes, place: str) -> _Line:
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{place}: {error}; {_FORMAT}") from error


def block_size_in_name(name: str) -> int | None:
    """Return the tokens a hash id stands for as the file name tells (`…_b512.jsonl.gz`)."""
    found = re.search(r"_b(\d+)(?=\.|$)", name)
    return int(found[1]) if found and int(found[1]) > 0 else None


def infer_block_size(requests: Sequence[TraceRequest], source: str) -> int:
    """Return the block size that explains every request's length and number of ids.

    Of several the only power of two, if there is one, else the smallest.
    Raises `ConfigError` when none does.
    """
    low, high = 1, max(request.input_tokens for request in requests)
    for request in requests:
        ids, tokens = len(request.block_ids), request.input_tokens
        if ids:
            low = max(low, -(-tokens // ids))
        if ids > 1:
            high = min(high, (tokens - 1) // (ids - 1))
    if low > high or not any(request.block_ids for request in requests):
        raise ConfigError(
            f"{source}: no block size fits every line's input_length and hash_ids; name it with "
            "--trace-block-size or in the file name (…_b512.jsonl)"
        )
    powers = [1 << bit for bit in range(32) if low <= 1 << bit <= high]
    return powers[0] if powers else low


def check_block_size(requests: Sequence[TraceRequest], block_size: int, source: str) -> None:
    """Refuse a block size that cannot be the trace's. Raises `ConfigError`.

    Ids beyond a prompt's end are an error; tokens beyond its ids are unique text, and an error
    only when they are most of the trace.
    """
    unhashed = 0
    for request in requests:
        blocks = -(-request.input_tokens // block_size)
        if len(request.block_ids) > blocks:
            raise ConfigError(
                f"{source}: request {request.index + 1} has {len(request.block_ids)} hash ids but "
                f"its {request.input_tokens} tokens are {blocks} blocks of {block_size}; "
                "correct it, or name the block size with --trace-block-size"
            )
        unhashed += max(0, request.input_tokens - len(request.block_ids) * block_size)
    total = sum(request.input_tokens for request in requests)
    if unhashed > MAX_UNHASHED_SHARE * total:
        raise ConfigError(
            f"{source}: with blocks of {block_size} tokens {unhashed / total:.0%} of all tokens "
            "have no hash id; name the block size with --trace-block-size"
        )


def slice_requests(
    requests: Sequence[TraceRequest], skip: int, limit: int | None, source: str
) -> list[TraceRequest]:
    """Return `limit` requests after the first `skip`, times counted from the first of them.

    Raises `ConfigError` when nothing is left.
    """
    chosen = requests[skip:] if limit is None else requests[skip : skip + limit]
    if not chosen:
        raise ConfigError(
            f"{source}: has {counted(len(requests), 'request')}, none after --skip {skip}"
        )
    start = chosen[0].timestamp_ms
    return [
        msgspec.structs.replace(request, timestamp_ms=request.timestamp_ms - start)
        for request in chosen
    ]


def smooth_timestamps(requests: Sequence[TraceRequest], seed: int = 0) -> list[TraceRequest]:
    """Return the requests with rounded times spread over the rounding interval, order kept.

    A trace with few distinct times was rounded; replayed as it is, it makes bursts that never
    were. Each group of equal times is spread at random up to the next time, but never further
    than the usual step. A trace with fine times is returned unchanged.
    """
    times = sorted({request.timestamp_ms for request in requests})
    if len(times) < 2 or len(requests) < COARSE_REQUESTS_PER_TIME * len(times):  # noqa: PLR2004  a pair makes a step
        return list(requests)
    step = median_high(later - earlier for earlier, later in pairwise(times))
    smooth: list[TraceRequest] = []
    for time, group in groupby(requests, key=lambda request: request.timestamp_ms):
        members = list(group)
        following = bisect_left(times, time) + 1
        span = min(step, times[following] - time) if following < len(times) else step
        draws = sorted(_uniform(member.index, seed) for member in members)
        smooth += [
            msgspec.structs.replace(member, timestamp_ms=time + draw * span)
            for member, draw in zip(members, draws, strict=True)
        ]
    return smooth


def _uniform(index: int, seed: int) -> float:
    """Return a pseudo-random number in [0, 1) that depends on nothing but the arguments."""
    return xxhash.xxh3_64_intdigest(b"%d" % index, seed % 2**64) / 2**64


def scale_times(
    requests: Sequence[TraceRequest], speedup: float, time_scale: float = 1.0
) -> list[TraceRequest]:
    """Return the requests arriving `speedup` times as fast, think times as recorded.

    `time_scale` multiplies both: 0.1 plays ten seconds of the trace in one.
    """
    return [
        msgspec.structs.replace(
            request,
            timestamp_ms=request.timestamp_ms * time_scale / speedup,
            delay_ms=None if request.delay_ms is None else request.delay_ms * time_scale,
        )
        for request in requests
    ]


def clip_lengths(
    requests: Sequence[TraceRequest],
    block_size: int,
    max_input_tokens: int | None,
    max_output_tokens: int | None,
) -> list[TraceRequest]:
    """Return the requests with their prompts cut at the end and their answers shortened."""
    clipped: list[TraceRequest] = []
    for request in requests:
        tokens = min(request.input_tokens, max_input_tokens or request.input_tokens)
        output = min(request.output_tokens, max_output_tokens or request.output_tokens)
        ids = request.block_ids[: -(-tokens // block_size)]
        changed = msgspec.structs.replace(
            request, input_tokens=tokens, output_tokens=output, block_ids=ids
        )
        clipped.append(changed)
    return clipped


def infinite_cache_hit_rate(requests: Sequence[TraceRequest], block_size: int) -> float:
    """Return cached / prompt tokens of one cache that all share and that never evicts.

    No routing can hit more (but for blocks smaller than the trace's). O(blocks).
    """
    tokens = sum(request.input_tokens for request in requests)
    return (tokens - sum(new_tokens(requests, block_size))) / tokens


def new_tokens(requests: Sequence[TraceRequest], block_size: int) -> list[int]:
    """Return of each prompt how many tokens such a cache would have to compute. O(blocks)."""
    return [max(0, one.input_tokens - depth * block_size) for one, depth in known_depths(requests)]


def known_depths(requests: Iterable[TraceRequest]) -> Iterator[tuple[TraceRequest, int]]:
    """Yield each request, and how many of its leading blocks came before. O(blocks)."""
    seen: set[int] = set()
    for request in requests:
        new = (depth for depth, block in enumerate(request.block_ids) if block not in seen)
        yield request, next(new, len(request.block_ids))
        seen.update(request.block_ids)


def split_sessions(requests: Sequence[TraceRequest]) -> list[tuple[TraceRequest, ...]]:
    """Return the chains of requests of which each waits for the one before.

    A session is one chain, a request without one is a chain alone; chains are in the order of
    their first requests.
    """
    chains: dict[str | int, list[TraceRequest]] = {}
    for request in requests:
        chains.setdefault(request.session or request.index, []).append(request)
    return [tuple(chain) for chain in chains.values()]


def prefix_families(requests: Sequence[TraceRequest]) -> list[int]:
    """Return each request's first block id that fewer than half of all requests share.

    Leading blocks nearly everybody has, such as one system prompt, tell no family. Requests
    without such a block are in the family of their last, those without any in family -1.
    """
    counts = Counter(block for request in requests for block in set(request.block_ids))
    families: list[int] = []
    for request in requests:
        rare = (block for block in request.block_ids if 2 * counts[block] < len(requests))
        families.append(next(rare, request.block_ids[-1] if request.block_ids else -1))
    return families
