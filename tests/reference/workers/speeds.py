"""The naive model of `Speeds` in kvmesh/native/speeds/speeds.c."""

from math import isfinite
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import PRIOR_MS_PER_TOKEN
from tests.reference.workers.relative_speed import OutputRates, Ratio, Scatter
from tests.reference.workers.step_times import StepTimes

MIN_SAMPLE_TOKENS: Final = 256
"""Less than this, with the step's fixed time, tells nothing of a worker's speed."""

SAME_STEP_S: Final = 0.002
"""First tokens this close together came out of one engine step."""

GRACE_MS: Final = 250.0
"""A sample may be so much above 8 times the belief, else no fixed time were ever believed."""

_PRIOR_TOKENS: Final = 16.0
_DRIFT: Final = 0.05
_COMPARED_EVERY: Final = 64
_AGED_AFTER: Final = 4
_HALF_LIFE_TOKENS: Final = 65_536.0
_OUTLIER: Final = 8.0
_INTERVAL_WEIGHT: Final = 0.02
_RESIDENCE_WEIGHT: Final = 0.05
_PROMPT_WEIGHT: Final = 0.05
_MAX_MS: Final = 3_600_000.0
_MIN_MS_PER_TOKEN: Final = 1e-4


class _Worker:
    __slots__ = (
        "interval_ms",
        "measured",
        "open_ms",
        "open_s",
        "open_tokens",
        "prefill",
        "residence_ms",
        "seen",
    )

    def __init__(self) -> None:
        self.prefill = Ratio(0.0, 0.0)
        self.open_ms = 0.0
        self.open_tokens = 0
        self.open_s = 0.0
        self.interval_ms = 0.0
        self.residence_ms = 0.0
        self.measured: tuple[int, int] | None = None
        self.seen = False


class Speeds:
    """Decayed ratios per worker, which are the fleet's as far as their difference may be chance.

    Every sample is clipped to 1/8..8 times the present belief, so no pause, clock step or wrong
    overlap moves it far at once; steady change is followed within some ten prompts. A worker that
    gets none is in time taken to be like the others. No history,
    no report and no clock but the caller's is needed. `fleet_ms_per_token` is the whole fleet's ms
    per uncached token, what an unknown worker is given.
    """

    def __init__(self, prior_ms_per_token: float = PRIOR_MS_PER_TOKEN) -> None:
        self.steps = StepTimes()
        self._answers = OutputRates()
        self._fleet = Ratio(prior_ms_per_token * _PRIOR_TOKENS, _PRIOR_TOKENS)
        self.fleet_ms_per_token = self._fleet.ms / self._fleet.tokens
        self._workers: dict[WorkerId, _Worker] = {}
        self.uncached_tokens = 0.0
        self.output_tokens = 0.0
        self._scatter = Scatter()
        self._compared_to = prior_ms_per_token
        self._since_compared = 0
        self._since_aged = 0
        self._interval_ms = 0.0
        self._residence_ms = 0.0

    def ms_per_token(self, worker: WorkerId) -> float:
        """Return the worker's prefill time, ms per uncached token, always > 0. O(1)."""
        return self.fleet_ms_per_token * self.prefill_ratio(worker).factor

    def prefill_ratio(self, worker: WorkerId) -> Ratio:
        """Return the worker's own evidence and factor, live until the worker is removed."""
        return self._worker(worker).prefill

    def ms_per_output_token(self, worker: WorkerId) -> float:
        """Return the time between two output tokens, ms; the fleet's when unseen, 0 without any."""
        known = self._workers.get(worker)
        return (known.interval_ms if known else 0.0) or self._interval_ms

    def residence_ms(self, worker: WorkerId) -> float:
        """Return how long a request stays, ms; the fleet's when unseen, 0 without any."""
        known = self._workers.get(worker)
        return (known.residence_ms if known else 0.0) or self._residence_ms

    def first_token(
        self, worker: WorkerId, uncached_tokens: int, service_s: float, now: float
    ) -> None:
        """Learn from a first token: `service_s` is the time since the worker could have begun.

        First tokens of one engine step count together: the step's time belongs to all of them.
        """
        known = self._workers.get(worker) or self._worker(worker)
        if known.open_tokens and now - known.open_s > SAME_STEP_S:
            self._close(known)
        if uncached_tokens > 0:
            self.uncached_tokens = _blend(self.uncached_tokens, uncached_tokens, _PROMPT_WEIGHT)
        known.open_s = now
        known.open_tokens += max(0, uncached_tokens)
        known.open_ms += _milliseconds(service_s)

    def measured(self, worker: WorkerId, tokens: int, busy_us: int) -> None:
        """Learn from an engine's own totals: uncached tokens prefilled, and the time that took.

        First tokens teach nothing more about such a worker's prefill: they come late for many
        reasons. Smaller totals than before are those of a new engine.
        """
        known = self._worker(worker)
        before = known.measured or (0, 0)
        if tokens < before[0] or busy_us < before[1]:
            before = (0, 0)
        new_tokens, new_us = tokens - before[0], busy_us - before[1]
        if new_tokens <= MIN_SAMPLE_TOKENS:
            known.measured = before
            return
        known.measured = (tokens, busy_us)
        weight = min(new_tokens, _HALF_LIFE_TOKENS)
        ms = max(new_us / 1000.0 / new_tokens, _MIN_MS_PER_TOKEN) * weight
        self._learn(known, ms, weight)

    def output(self, worker: WorkerId, tokens: int, elapsed_s: float) -> None:
        """Learn from `tokens` (> 0) output tokens that took `elapsed_s` since those before."""
        if tokens < 1:
            return
        known = self._workers.get(worker) or self._worker(worker)
        sample = _milliseconds(elapsed_s) / tokens
        known.interval_ms = _blend(known.interval_ms, sample, _INTERVAL_WEIGHT)
        self._interval_ms = _blend(self._interval_ms, sample, _INTERVAL_WEIGHT)

    def finished(self, worker: WorkerId, residence_s: float, output_tokens: int) -> None:
        """Learn how long a request stayed, from booking to end, and its output (0: unknown)."""
        known = self._workers.get(worker) or self._worker(worker)
        sample = _milliseconds(residence_s)
        known.residence_ms = _blend(known.residence_ms, sample, _RESIDENCE_WEIGHT)
        self._residence_ms = _blend(self._residence_ms, sample, _RESIDENCE_WEIGHT)
        if output_tokens > 0:
            self.output_tokens = _blend(self.output_tokens, output_tokens, _RESIDENCE_WEIGHT)

    def answered(self, worker: WorkerId, tokens: int, elapsed_s: float) -> None:
        """Learn from an answer's `tokens` of output, which took `elapsed_s` behind its prefill, or
        behind its first token without that one.
        """
        ratio = self.prefill_ratio(worker)
        self._answers.learn(worker, ratio, tokens, _milliseconds(elapsed_s))

    def answer_tokens(self, expected_tokens: int) -> float:
        """Return what an answer of so many tokens (0: not known) counts for beside `slow_ms` of a
        worker's ratio.
        """
        return self._answers.answer_tokens(expected_tokens)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget a worker; the fleet remembers what it contributed."""
        self._workers.pop(worker, None)
        self._answers.remove_worker(worker)

    def _worker(self, worker: WorkerId) -> _Worker:
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Worker()
        return known

    def _close(self, known: _Worker) -> None:
        prefilled, measured = known.open_tokens, known.open_ms
        known.open_tokens = 0
        known.open_ms = 0.0
        if not prefilled or known.measured is not None:
            return
        factor = known.prefill.factor
        tokens = prefilled + self.steps.step_tokens
        believed = self.fleet_ms_per_token * factor * tokens
        self.steps.fold(prefilled, min(measured, believed * _OUTLIER + GRACE_MS) / factor)
        if tokens <= MIN_SAMPLE_TOKENS:
            return
        least = max(believed / _OUTLIER, _MIN_MS_PER_TOKEN * tokens)
        clipped = min(max(measured, least), believed * _OUTLIER)
        self._learn(known, clipped, tokens)

    def _learn(self, known: _Worker, ms: float, tokens: float) -> None:
        """Fold a sample into the worker's ratio and the fleet's."""
        own, fleet = known.prefill, self.fleet_ms_per_token
        predicted = own.ms / own.tokens if own.tokens else fleet
        self._scatter.fold(own, ms, tokens, predicted * tokens)
        own.fold(ms, tokens, _HALF_LIFE_TOKENS)
        self._fleet.fold(ms, tokens, 4 * _HALF_LIFE_TOKENS)
        fleet = self.fleet_ms_per_token = self._fleet.ms / self._fleet.tokens
        known.seen = True
        self._since_compared += 1
        self._since_aged += 1
        if self._since_aged >= max(_COMPARED_EVERY, _AGED_AFTER * len(self._workers)):
            self._age()
        drift = abs(fleet / self._compared_to - 1.0)
        if drift > _DRIFT or self._since_compared >= _COMPARED_EVERY:
            self._compare_all(fleet)
            return
        own.factor = self._scatter.factor(own, fleet)

    def _age(self) -> None:
        """Doubt the speeds of those who had no prompt while the others had several each.

        Else a worker that was believed slow by mistake would get no prompt to show it. O(workers).
        """
        self._since_aged = 0
        for known in self._workers.values():
            if not known.seen:
                known.prefill.age(self.fleet_ms_per_token)
            known.seen = False
        self._since_compared = _COMPARED_EVERY

    def _compare_all(self, fleet_ms_per_token: float) -> None:
        """Compare everyone with the fleet again. O(workers)."""
        self._compared_to, self._since_compared = fleet_ms_per_token, 0
        for known in self._workers.values():
            if known.prefill.tokens:
                known.prefill.factor = self._scatter.factor(known.prefill, fleet_ms_per_token)


def _milliseconds(seconds: float) -> float:
    """Return a measured time in ms, made harmless: clocks may step, inputs may be nan."""
    return min(max(0.0, seconds * 1000.0), _MAX_MS) if isfinite(seconds) else 0.0


def _blend(old: float, sample: float, weight: float) -> float:
    """Return a mean moved towards a sample, which is clipped to 1/8..8 times the mean."""
    if old <= 0.0:
        return sample
    if sample < old / _OUTLIER:
        sample = old / _OUTLIER
    elif sample > old * _OUTLIER:
        sample = old * _OUTLIER
    return old + weight * (sample - old)
