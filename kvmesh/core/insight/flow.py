"""Rates of the recent past: what ended requests made, over a sliding window, by name."""

from heapq import nlargest
from math import floor
from operator import attrgetter
from typing import Final, Literal

import msgspec

from kvmesh.bounds import MAX_NAME

ErrorClass = Literal["", "4xx", "429", "499", "5xx", "cut"]

ERRORS: Final[tuple[str, ...]] = ("4xx", "429", "499", "5xx", "cut")
"""How requests end that did not get a whole answer. 4xx are without 429; 499: the client left
before the end; cut: an answer that began was broken off.
"""

FAILURES: Final[tuple[str, ...]] = ("4xx", "429", "5xx", "cut")
"""Those that somebody is to blame for: a client that leaves is none."""

_TOO_MANY: Final = 429
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


def error_class(kind: str, status: int) -> ErrorClass:
    """Return what became of a request that ended as `kind` (`server.scope.End`) and whose client
    got `status`, 0 for nothing; "" for a whole answer.
    """
    if kind == "client_gone":
        return "499"
    if status >= _SERVER_ERROR:
        return "5xx"
    if status == _TOO_MANY:
        return "429"
    if status >= _CLIENT_ERROR:
        return "4xx"
    return "" if kind == "finished" else "cut"


class Flow(msgspec.Struct):
    """Sums over ended requests, floats since samples count several times.

    `ttft_ms` is of `first_tokens` requests, `decode_ms` the time from the first to the last of
    1 + `decode_tokens` tokens each.
    """

    requests: float = 0.0
    errors: dict[str, float] = {}
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    ttft_ms: float = 0.0
    first_tokens: float = 0.0
    decode_ms: float = 0.0
    decode_tokens: float = 0.0

    def add(self, other: "Flow", weight: float = 1.0) -> None:
        """Add the sums of `other`, each counted `weight` times."""
        self.requests += weight * other.requests
        self.prompt_tokens += weight * other.prompt_tokens
        self.output_tokens += weight * other.output_tokens
        self.ttft_ms += weight * other.ttft_ms
        self.first_tokens += weight * other.first_tokens
        self.decode_ms += weight * other.decode_ms
        self.decode_tokens += weight * other.decode_tokens
        for name, count in other.errors.items():
            self.errors[name] = self.errors.get(name, 0.0) + weight * count


class Rates(msgspec.Struct, frozen=True):
    """What a window holds, a second; `ttft_ms` and `tpot_ms` (time per token behind the first) are
    means, None without any. `errors_per_s` has all of `ERRORS`.
    """

    requests_per_s: float
    errors_per_s: dict[str, float]
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_ms: float | None
    tpot_ms: float | None

    @classmethod
    def of(cls, flow: Flow, seconds: float) -> "Rates":
        """Return the rates of sums over `seconds`."""
        return cls(
            requests_per_s=flow.requests / seconds,
            errors_per_s={name: flow.errors.get(name, 0.0) / seconds for name in ERRORS},
            prompt_tokens_per_s=flow.prompt_tokens / seconds,
            output_tokens_per_s=flow.output_tokens / seconds,
            ttft_ms=flow.ttft_ms / flow.first_tokens if flow.first_tokens else None,
            tpot_ms=flow.decode_ms / flow.decode_tokens if flow.decode_tokens else None,
        )


class SlidingFlow:
    """Sums over about the last `window_s` seconds: the present window and as much of the one
    before as the present one still lacks. O(1) memory; times are the caller's, seconds.

    `since_s` is when counting began: a window that is not full yet counts as shorter, 1 s at least.
    """

    __slots__ = ("_before", "_now", "_since_s", "_slot", "_window_s")

    def __init__(self, window_s: float, since_s: float) -> None:
        self._window_s = window_s
        self._since_s = since_s
        self._slot = floor(since_s / window_s)
        self._now = Flow()
        self._before = Flow()

    def add(self, part: Flow, now: float) -> None:
        """Count requests that ended now."""
        self._turn(now)
        self._now.add(part)

    def sums(self, now: float) -> Flow:
        """Return the sums over the window that ends now."""
        self._turn(now)
        sums = Flow()
        sums.add(self._now)
        sums.add(self._before, 1.0 - (now / self._window_s - self._slot))
        return sums

    def rates(self, now: float) -> Rates:
        """Return the rates over the window that ends now."""
        return Rates.of(self.sums(now), max(1.0, min(self._window_s, now - self._since_s)))

    def _turn(self, now: float) -> None:
        slot = floor(now / self._window_s)
        if slot <= self._slot:
            return
        self._before = self._now if slot == self._slot + 1 else Flow()
        self._now = Flow()
        self._slot = slot


class NamedFlow(msgspec.Struct, frozen=True):
    """The rates of one name."""

    name: str
    rates: Rates


_requests: Final = attrgetter("rates.requests_per_s")


class FlowTable:
    """The flow of each of `most` names or more, twice as many at most.

    Names are clients' words, so that there may be any number of them: when the table is full the
    `most` busiest of the window stay. So a flood of new names, a request each, never puts out one
    that sends more; a name is cut to `MAX_NAME` characters. O(1) a request, amortised.
    """

    def __init__(self, window_s: float, most: int, since_s: float) -> None:
        self._window_s = window_s
        self._most = most
        self._since_s = since_s
        self._flows: dict[str, SlidingFlow] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def add(self, name: str, part: Flow, now: float) -> None:
        """Count requests of `name` that ended now; those without a name count nowhere."""
        if not name:
            return
        name = name[:MAX_NAME]
        flow = self._flows.get(name)
        if flow is None:
            if len(self._flows) >= 2 * self._most:
                kept = {row.name for row in self.rows(now)}
                self._flows = {one: old for one, old in self._flows.items() if one in kept}
            flow = self._flows[name] = SlidingFlow(self._window_s, self._since_s)
        flow.add(part, now)

    def rows(self, now: float) -> list[NamedFlow]:
        """Return the rates of the `most` busiest names, busiest first; those that sent nothing in
        the window are forgotten.
        """
        rows = [NamedFlow(name, flow.rates(now)) for name, flow in sorted(self._flows.items())]
        self._flows = {one.name: self._flows[one.name] for one in rows if _requests(one) > 0.0}
        return nlargest(self._most, (one for one in rows if _requests(one) > 0.0), key=_requests)
