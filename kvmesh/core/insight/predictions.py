"""How well predicted overlaps fit what engines say they reused, and when that asks for action.

Whatever goes wrong between an engine's cache and this replica's index, lost events nobody noticed
or an index damaged by a bug, shows in the end as answers whose `cached_tokens` are not those that
were predicted. One such answer means little: blocks are evicted and stored while a request waits.
"""

from typing import Final, Literal

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.worker_info import Trust

Verdict = Literal["unlike", "nothing", "hit", "over", "under"]
"""Of one answer: the engine counted other prompt tokens, nothing was cached nor predicted, the
prediction held, was too high, too low."""

_UNPAUSED: Final = float("-inf")


class PredictionOptions(msgspec.Struct, frozen=True):
    """When a worker's index is doubted. Times in seconds.

    Of one request in `check_every_s` it is looked up what events alone foretell; that is judged,
    since predictions made of decisions miss wherever a cache is too small for its load.
    A prediction misses when it is off by more than `tolerance_blocks` and by more than
    `tolerance_share` of the prompt. The worker is doubted when at least `distrust_share` of its
    last `window` answers missed, of which there must be `least`, and again while that stays so,
    after pauses from `pause_s`, doubled up to `max_pause_s`. Below `trust_share` all is well again.
    Requests decided up to `settle_s` after a doubt are no evidence: they may not know the answer.
    A worker's overlaps are called exact while of its last `window_right` answers, once there are
    `least_right`, at least `exact_share` reused what was predicted to within a block.
    """

    window: int = 32
    least: int = 12
    distrust_share: float = 0.5
    trust_share: float = 0.125
    tolerance_blocks: int = 1
    tolerance_share: float = 0.1
    check_every_s: float = 0.005
    settle_s: float = 5.0
    pause_s: float = 60.0
    max_pause_s: float = 3600.0
    window_right: int = 64
    least_right: int = 10
    exact_share: float = 0.9


class AnswerSeen(msgspec.Struct, frozen=True):
    """One answer's tokens. `counted` are the prompt tokens by the engine, `prompt` by the router.

    `decided_s` is when the worker was chosen, and its overlap predicted; `reported` is the part of
    that which events had told of. None: nobody looked, or it proves nothing (see `reported`).
    """

    prompt: int
    counted: int
    predicted: int
    cached: int
    decided_s: float
    reported: int | None = None


class Distrust(msgspec.Struct, frozen=True):
    """So many of a worker's last answers were predicted wrongly.

    `again`: what was done about the last doubt was no help.
    """

    misses: int
    answers: int
    again: bool = False


class PredictionReport(msgspec.Struct, frozen=True):
    """One worker's predictions. All but `recent_*`, the window, and `doubted` count since it came.

    `over` and `under` are misses, `unlike` answers that could not be compared. `right_share` is the
    share of the last answers that reused what was predicted to within a block, None: too few.
    """

    hits: int
    over: int
    under: int
    unlike: int
    predicted_tokens: int
    cached_tokens: int
    recent_answers: int
    recent_misses: int
    doubts: int
    doubted: bool
    right_share: float | None


class _Worker:
    __slots__ = (
        "cached_tokens",
        "counts",
        "doubted",
        "doubts",
        "evidence_from_s",
        "pause_s",
        "predicted_tokens",
        "recent",
        "recent_answers",
        "right",
        "right_answers",
        "silent_until_s",
    )

    def __init__(self, pause_s: float) -> None:
        self.counts: dict[Verdict, int] = dict.fromkeys(
            ("unlike", "nothing", "hit", "over", "under"), 0
        )
        self.predicted_tokens = self.cached_tokens = 0
        # The window: one bit an answer, newest lowest, set for a miss.
        self.recent = self.recent_answers = 0
        # The same of all answers, whatever waited in front of them, set for a right prediction.
        self.right = self.right_answers = 0
        self.doubts = 0
        self.doubted = False
        self.evidence_from_s = self.silent_until_s = _UNPAUSED
        self.pause_s = pause_s


class AccessReport(msgspec.Struct, rename={"reported": "told"}):
    """What one worker's served answers told.

    `tokens` of prompts were found in its cache, `blocks` are the whole blocks of them. `reported`
    answers said so, also that it was none; of `untold` ones nothing is known: the engine does not
    tell, or the client of a stream did not ask for its usage.
    """

    reported: int = 0
    untold: int = 0
    tokens: int = 0
    blocks: int = 0


class CacheAccesses:
    """Sums up what answers tell, a worker at a time. One row a worker until `forget`.

    Engines publish what they store and remove; what they access only `cached_tokens` tells.
    """

    def __init__(self) -> None:
        self.reports: dict[WorkerId, AccessReport] = {}

    def count(self, worker: WorkerId, usage: Usage | None, block_size: int) -> None:
        """Take the usage of a served answer. An engine cannot have found more than the prompt."""
        report = self.reports.get(worker)
        if report is None:
            report = self.reports[worker] = AccessReport()
        if usage is None or usage.cached_tokens is None:
            report.untold += 1
            return
        tokens = max(0, min(usage.cached_tokens, usage.prompt_tokens))
        report.reported += 1
        report.tokens += tokens
        report.blocks += tokens // block_size

    def forget(self, worker: WorkerId) -> None:
        """Drop what is known of a worker that is gone."""
        self.reports.pop(worker, None)


class Predictions:
    """Compares answers with predictions, one window a worker; says which index to doubt.

    `estimated` are the workers whose overlaps must not be called exact, see `word`.
    Before `check_at_s` no decision has to be looked at for what events had `reported`.
    """

    def __init__(self, block_size: int, options: PredictionOptions | None = None) -> None:
        self._options = options or PredictionOptions()
        self._block_size = block_size
        self._tolerance = self._options.tolerance_blocks * block_size
        self._mask = (1 << self._options.window) - 1
        self._mask_right = (1 << self._options.window_right) - 1
        self.estimated: set[WorkerId] = set()
        self._workers: dict[WorkerId, _Worker] = {}
        self.check_at_s = _UNPAUSED

    def resize(self, block_size: int) -> None:
        """Judge by blocks of another size from now on."""
        self._block_size = block_size
        self._tolerance = self._options.tolerance_blocks * block_size

    def reported(self, chosen: Candidate, told_blocks: int, trust: Trust, now: float) -> int | None:
        """Return the tokens of a prompt that events had told of; None where that is no evidence.

        To be asked from `check_at_s` on. An answer shows nothing where what is known of the
        worker's cache was a guess. Nor where the request has to wait there, for others' prefills or
        for memory: a cache too small for its load is another one when its turn comes, and in a mesh
        that thrashes three of four predictions miss, with an index in perfect order.
        """
        self.check_at_s = now + self._options.check_every_s
        if trust is not Trust.EXACT or chosen.prefill_tokens or chosen.waiting_requests:
            return None
        if chosen.capacity_blocks and chosen.decode_blocks >= chosen.capacity_blocks:
            return None
        return told_blocks * chosen.block_size

    def compare(self, worker: WorkerId, answer: AnswerSeen, now: float) -> Distrust | None:
        """Count an answer; return why the worker's index is to be had anew, if it is. O(1)."""
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Worker(self._options.pause_s)
        if answer.predicted or answer.cached:
            self._count_right(worker, known, answer)
        verdict = self._judge(answer, answer.predicted)
        known.counts[verdict] += 1
        if verdict == "unlike":
            return None
        known.predicted_tokens += answer.predicted
        known.cached_tokens += answer.cached
        if answer.reported is None or answer.decided_s < known.evidence_from_s:
            return None
        if answer.reported != answer.predicted:
            verdict = self._judge(answer, answer.reported)
        if verdict == "nothing":
            return None
        known.recent = (known.recent << 1 | (verdict != "hit")) & self._mask
        known.recent_answers = min(known.recent_answers + 1, self._options.window)
        return self._distrust(known, now)

    def forget(self, worker: WorkerId) -> None:
        """Drop all that is known of a worker."""
        self._workers.pop(worker, None)
        self.estimated.discard(worker)

    def word(self, worker: WorkerId, trust: Trust) -> Trust:
        """Return what is to be said of the overlaps of a worker whose events are known so far.

        All events may be known, and yet a cache under pressure is another one when a request's turn
        comes: "exact" would be wrong of it. O(1).
        """
        return Trust.ESTIMATED if trust is Trust.EXACT and worker in self.estimated else trust

    def workers(self) -> tuple[WorkerId, ...]:
        """Return the workers whose answers were compared, sorted."""
        return tuple(sorted(self._workers))

    def report(self, worker: WorkerId) -> PredictionReport:
        """Return the counts of one worker. Raises `KeyError` for one that never answered."""
        known = self._workers[worker]
        counts = known.counts
        return PredictionReport(
            hits=counts["hit"],
            over=counts["over"],
            under=counts["under"],
            unlike=counts["unlike"],
            predicted_tokens=known.predicted_tokens,
            cached_tokens=known.cached_tokens,
            recent_answers=known.recent_answers,
            recent_misses=known.recent.bit_count(),
            doubts=known.doubts,
            doubted=known.doubted,
            right_share=self._right_share(known),
        )

    def _count_right(self, worker: WorkerId, known: _Worker, answer: AnswerSeen) -> None:
        right = abs(answer.predicted - answer.cached) <= self._block_size
        known.right = (known.right << 1 | right) & self._mask_right
        known.right_answers = min(known.right_answers + 1, self._options.window_right)
        share = self._right_share(known)
        if share is not None and share < self._options.exact_share:
            self.estimated.add(worker)
        else:
            self.estimated.discard(worker)

    def _right_share(self, known: _Worker) -> float | None:
        if known.right_answers < self._options.least_right:
            return None
        return known.right.bit_count() / known.right_answers

    def _judge(self, answer: AnswerSeen, predicted: int) -> Verdict:
        if answer.counted != answer.prompt:
            # Another tokenizer or template: no index can be right, and none is to blame.
            return "unlike"
        if not predicted and not answer.cached:
            return "nothing"
        off = predicted - answer.cached
        if abs(off) <= max(self._tolerance, self._options.tolerance_share * answer.prompt):
            return "hit"
        return "over" if off > 0 else "under"

    def _distrust(self, known: _Worker, now: float) -> Distrust | None:
        options = self._options
        if known.recent_answers < options.least:
            return None
        distrust = Distrust(known.recent.bit_count(), known.recent_answers, known.doubted)
        share = distrust.misses / distrust.answers
        if share <= options.trust_share:
            known.doubted = False
            known.pause_s = options.pause_s
            return None
        if share < options.distrust_share or now < known.silent_until_s:
            return None
        if known.doubted:
            known.pause_s = min(2 * known.pause_s, options.max_pause_s)
        known.doubted = True
        known.doubts += 1
        known.silent_until_s = now + known.pause_s
        known.evidence_from_s = now + options.settle_s
        known.recent = known.recent_answers = 0
        return distrust
