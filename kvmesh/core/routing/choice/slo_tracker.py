"""Requests with targets, from their arrival to their end: what was foretold of them, what came."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from kvmesh._native import TimeErrors
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.decision import Forecast

MOST_OPEN: Final = 1 << 16
"""Requests followed at once; beyond it the oldest is followed no longer."""

Result = Literal["met", "missed_ttft", "missed_tpot", "refused", "unserved"]
"""What became of a request with targets: unserved if it failed, was given up or its client left."""

RESULTS: Final[tuple[Result, ...]] = get_args(Result)


class SloStatistics(msgspec.Struct, frozen=True):
    """Counts since the start. Of those met or missed `foretold_misses` were expected to be
    missed: the sum of their chances, where there was a forecast. `ttft_bias` and `tpot_bias`:
    actual over predicted times, typically; the spreads are those of the ratios' logarithms.
    """

    results: Mapping[str, int]
    open: int
    foretold_misses: float
    ttft_bias: float
    ttft_spread: float
    tpot_bias: float
    tpot_spread: float


class _Open(msgspec.Struct, eq=False, gc=False):
    """A request that is followed; `sent_s` counts once it was `sent`."""

    targets: Targets
    arrived_s: float
    sent: bool = False
    sent_s: float = 0.0
    first_s: float | None = None
    forecast: Forecast | None = None


class SloTracker:
    """Learns how far times are off that were foretold, and counts what met its targets.

    Each request that came is counted once: served, refused, or else when it is closed.
    """

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self.ttft_errors = TimeErrors()
        self.tpot_errors = TimeErrors()
        self.open: OrderedDict[str, _Open] = OrderedDict()
        self._most_open = most_open
        self._results: dict[Result, int] = dict.fromkeys(RESULTS, 0)
        self._predicted = 0.0

    def arrive(self, request_id: str, targets: Targets, now: float) -> None:
        """Follow a request from now on; no matter if it is followed already."""
        if request_id in self.open:
            return
        if len(self.open) >= self._most_open:
            self.open.popitem(last=False)
        self.open[request_id] = _Open(targets, now)

    def waited_ms(self, request_id: str, now: float) -> float:
        """Return how long ago a request arrived, ms; 0 for one that did not."""
        known = self.open.get(request_id)
        return 0.0 if known is None else max(0.0, now - known.arrived_s) * 1000.0

    def sent(
        self, request_id: str, targets: Targets, forecast: Forecast | None, now: float
    ) -> None:
        """Note that a request was sent to a worker for which that was foretold; None: nothing."""
        known = self.open.get(request_id)
        if known is None:
            self.arrive(request_id, targets, now)
            known = self.open[request_id]
        known.sent, known.sent_s, known.forecast, known.first_s = True, now, forecast, None

    def first_token(self, request_id: str, now: float) -> None:
        """Learn from a first token."""
        known = self.open.get(request_id)
        if known is None or not known.sent or known.first_s is not None:
            return
        known.first_s = now
        if known.forecast is not None:
            predicted_ms = known.forecast.ttft_ms - known.forecast.waited_ms
            self.ttft_errors.learn(predicted_ms, (now - known.sent_s) * 1000.0)

    def served(self, request_id: str, output_tokens: int, now: float) -> Result | None:
        """Count a request that was answered, and learn from its tokens' times; return how it went,
        None if it is not followed.

        Of an answer without a first token that anybody saw, one that came whole, the time of all of
        it is held against what both targets allow for its tokens.
        """
        known = self.open.pop(request_id, None)
        if known is None:
            return None
        forecast, targets = known.forecast, known.targets
        further = max(0, output_tokens - 1)
        tpot_ms: float | None = None
        if known.first_s is None:
            ttft_ms = (now - known.arrived_s) * 1000.0 - further * _for_each_token(known)
        else:
            ttft_ms = (known.first_s - known.arrived_s) * 1000.0
            if further:
                tpot_ms = (now - known.first_s) * 1000.0 / further
                if forecast is not None and forecast.tpot_ms > 0.0:
                    self.tpot_errors.learn(forecast.tpot_ms, tpot_ms)
        result: Result = "met"
        if targets.ttft_ms is not None and ttft_ms > targets.ttft_ms:
            result = "missed_ttft"
        elif targets.tpot_ms is not None and tpot_ms is not None and tpot_ms > targets.tpot_ms:
            result = "missed_tpot"
        self._results[result] += 1
        if forecast is not None:
            self._predicted += forecast.chance
        return result

    def refused(self, request_id: str) -> None:
        """Count a request that was refused since it would have missed its targets."""
        self.open.pop(request_id, None)
        self._results["refused"] += 1

    def close(self, request_id: str) -> None:
        """Count a request that is over and was neither answered nor refused."""
        if self.open.pop(request_id, None) is not None:
            self._results["unserved"] += 1

    def statistics(self) -> SloStatistics:
        """Return the counts since the start."""
        return SloStatistics(
            results={str(one): count for one, count in self._results.items()},
            open=len(self.open),
            foretold_misses=self._predicted,
            ttft_bias=self.ttft_errors.bias,
            ttft_spread=self.ttft_errors.spread,
            tpot_bias=self.tpot_errors.bias,
            tpot_spread=self.tpot_errors.spread,
        )


def _for_each_token(known: _Open) -> float:
    """Return the time that a further token is allowed, ms: the target, else what was foretold."""
    if known.targets.tpot_ms is not None:
        return known.targets.tpot_ms
    return 0.0 if known.forecast is None else known.forecast.tpot_ms
