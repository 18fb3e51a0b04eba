"""The requests of the last minutes as rows of a trace, in bounded memory."""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final

import msgspec

from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.insight.prefix_families import PrefixFamilies
from kvmesh.core.insight.weight_search import LoggedFleet

KEY_TOKENS: Final = 128
"""Tokens between two hashes that are kept of a prompt: what shares less shares nothing."""

ROW_BYTES: Final = 390
"""What a row takes besides its hashes, as measured."""

SECONDS: Final = 2
"""Seconds are counted apart, for up to so many times the window."""

MAX_LEVEL: Final = 20
LOOSER: Final = 8
"""More families are kept again when the rows take less than one part in so many of the memory."""

FAMILY_BITS: Final = 64


class Traced(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a prompt until its request ends: `keys` packed as native u64s."""

    family: int
    keys: bytes


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One ended request. Times are the caller's, seconds; `ttft_ms`, from `at_s` on, None: no first
    token was seen.

    `itl_ms` is the mean time per further token, None where there was none. `cached_tokens` of the
    prompt were reused, by the engine's word, else as predicted.
    """

    at_s: float
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    worker: WorkerId
    traced: Traced
    ttft_ms: float | None = None
    itl_ms: float | None = None
    cached_tokens: int = 0

    def beginnings(self) -> list[bytes]:
        """Return the hashes of the prompt's beginnings as keys (`as_key`), shortest first."""
        keys = self.traced.keys
        return [keys[at : at + HASH_BYTES] for at in range(0, len(keys), HASH_BYTES)]

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return ROW_BYTES + len(self.traced.keys)


class TraceRingStatistics(msgspec.Struct, frozen=True):
    """Rows kept and their bytes, of how many requests in `window_s` seconds; one family of
    `2 ** level` is kept.
    """

    rows: int
    bytes: int
    seen: int
    level: int
    block_tokens: int
    window_s: float


class TraceRing:
    """Rows of the last `window_s` seconds, `max_bytes` of them at most.

    When there are too many, half of the prefix families is left out, and so on: whole families, so
    that what is kept is shared as before. Where that is not enough the oldest go first.
    `stride` is the engine blocks between two hashes that are kept.
    """

    def __init__(self, block_size: int, *, window_s: float, max_bytes: int) -> None:
        self._size(block_size)
        self._window_s = window_s
        self._max_bytes = max_bytes
        self._families = PrefixFamilies()
        self._rows: deque[TraceRow] = deque()
        self._bytes = 0
        self._level = 0
        self._stricter: deque[tuple[float, int]] = deque(maxlen=MAX_LEVEL)
        self._seconds: dict[int, list[int]] = {}

    def resize(self, block_size: int) -> None:
        """Keep prompts in blocks of another size from now on; rows of the old size are dropped."""
        self._size(block_size)
        self._rows.clear()
        self._bytes = 0

    def _size(self, block_size: int) -> None:
        self.stride = max(1, KEY_TOKENS // block_size)
        self.block_tokens = self.stride * block_size

    def take(self, hashes: Sequence[int]) -> Traced | None:
        """Return what is to be kept of a prompt with these block hashes; None: nothing."""
        keys = array("Q", hashes[self.stride - 1 :: self.stride])
        family = self._families.name(keys)
        if family >> FAMILY_BITS - self._level:
            return None
        return Traced(family, keys.tobytes())

    def count_request(self, prompt_tokens: int, at_s: float, now: float) -> None:
        """Count a request that began at `at_s` and ended now: `add` does so, too."""
        seconds, oldest = self._seconds, int(now - self._window_s)
        second = int(at_s)
        if second < oldest:
            return
        found = seconds.get(second)
        if found is None:
            found = seconds[second] = [0, 0]
            if len(seconds) > SECONDS * self._window_s + 1:
                self._seconds = {one: sums for one, sums in seconds.items() if one >= oldest}
        found[0] += 1
        found[1] += prompt_tokens

    def add(self, row: TraceRow, now: float) -> None:
        """Keep a request that ended; drop what is too old or too much."""
        self.count_request(row.prompt_tokens, row.at_s, now)
        if row.traced.family >> FAMILY_BITS - self._level:
            return
        rows = self._rows
        rows.append(row)
        self._bytes += row.size
        self._expire(now)
        if self._bytes > self._max_bytes:
            if self._level < MAX_LEVEL:
                self._thin()
            while self._bytes > self._max_bytes:
                self._drop()
        elif self._level and LOOSER * self._bytes < self._max_bytes:
            self._stricter.append((now, self._level))
            self._level -= 1

    def sample(self, since_s: float, now: float) -> tuple[list[TraceRow], float]:
        """Return the rows that began after `since_s`, in order, and which part of all prompt tokens
        they have, 0 < it <= 1: every family was kept whole, or not at all. O(rows).
        """
        self._expire(now)
        levels = [level for until_s, level in self._stricter if until_s >= since_s]
        shift = FAMILY_BITS - max([self._level, *levels])
        found = [
            row for row in self._rows if row.at_s >= since_s and not row.traced.family >> shift
        ]
        whole_s = ceil(max(0.0, since_s))
        seen = sum(one[1] for second, one in self._seconds.items() if second >= whole_s)
        kept = sum(row.prompt_tokens for row in found if row.at_s >= whole_s)
        return sorted(found, key=_begin), min(1.0, kept / seen) if kept and seen else 1.0

    def newest(self, count: int) -> list[TraceRow]:
        """Return the rows that ended last, `count` at most, in order of their begin. O(count)."""
        rows = self._rows
        return sorted((rows[-n] for n in range(1, min(count, len(rows)) + 1)), key=_begin)

    def count(self, since_s: float, most: int) -> int:
        """Return how many rows began after `since_s`, up to `most` of those that ended last."""
        rows = self._rows
        return sum(rows[-n].at_s >= since_s for n in range(1, min(most, len(rows)) + 1))

    @property
    def kept_share(self) -> float:
        """Return which part of the families is kept now."""
        return float(0.5**self._level)

    def statistics(self) -> TraceRingStatistics:
        """Return sizes."""
        return TraceRingStatistics(
            rows=len(self._rows),
            bytes=self._bytes,
            seen=sum(one[0] for one in self._seconds.values()),
            level=self._level,
            block_tokens=self.block_tokens,
            window_s=self._window_s,
        )

    def _expire(self, now: float) -> None:
        rows, oldest_s = self._rows, now - self._window_s
        while rows and rows[0].at_s < oldest_s:
            self._drop()

    def _drop(self) -> None:
        self._bytes -= self._rows.popleft().size

    def _thin(self) -> None:
        """Leave out half of the families that are kept."""
        self._level += 1
        shift = FAMILY_BITS - self._level
        self._rows = deque(row for row in self._rows if not row.traced.family >> shift)
        self._bytes = sum(row.size for row in self._rows)


def mooncake_lines(
    rows: Sequence[TraceRow], block_tokens: int, fleet: LoggedFleet | None = None
) -> Iterator[bytes]:
    """Yield the rows as lines of a Mooncake trace, with blocks of `block_tokens`, times from 0.

    Equal beginnings have equal ids, small numbers that tell nothing of the hashes. The part of a
    prompt behind its last full block has an id of its own. Beside the format's own fields, which
    readers of traces take alone, a line tells how its request went, and the first line of the
    `fleet` (field `kvmesh`).
    """
    numbers: dict[bytes, int] = {}
    begin_s = rows[0].at_s if rows else 0.0
    unique = 0
    for row in rows:
        ids = [numbers.setdefault(key, len(numbers) + 1) for key in row.beginnings()]
        if row.prompt_tokens > len(ids) * block_tokens:
            unique -= 1
            ids.append(unique)
        line: dict[str, object] = {
            "timestamp": round((row.at_s - begin_s) * 1000.0, 3),
            "input_length": row.prompt_tokens,
            "output_length": row.output_tokens,
            "hash_ids": ids,
            "cached_tokens": row.cached_tokens,
            "latency_ms": round((row.ended_s - row.at_s) * 1000.0, 3),
        }
        for name, value in (("ttft_ms", row.ttft_ms), ("tpot_ms", row.itl_ms)):
            if value is not None:
                line[name] = round(value, 3)
        if fleet is not None:
            line["kvmesh"], fleet = fleet, None
        yield msgspec.json.encode(line) + b"\n"


def _begin(row: TraceRow) -> float:
    return row.at_s
