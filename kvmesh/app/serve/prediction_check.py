"""A router's predictions held against what engines say they reused."""

from collections.abc import Callable

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.predictions import AnswerSeen, Doubt, Predictions, is_evidence
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.scheduler import Scheduler


class PredictionCheck:
    """Looks some predictions up as they are made, judges all answers.

    `index` is what events told, None without any; `doubt` has what is known of a worker sent anew.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        index: KvIndex | None,
        doubt: Callable[[WorkerId, Doubt], None],
    ) -> None:
        self.predictions = Predictions(scheduler.options.block_size)
        self._scheduler = scheduler
        self._index = index
        self._doubt = doubt

    def look_up(self, decision: Decision, hashes: Hashes, now: float) -> int | None:
        """Return what events alone tell to be cached at the chosen worker, tokens.

        None where nobody looked, as a rule, or where it proves nothing.
        """
        if self._index is None or not decision.by_cache or not self.predictions.may_look(now):
            return None
        trust = self._scheduler.workers.info(decision.worker).trust
        if not is_evidence(decision.chosen, trust):
            return None
        blocks = self._index.find_matches(hashes).get(decision.worker, 0)
        return blocks * self._scheduler.options.block_size

    def judge(self, worker: WorkerId, answer: AnswerSeen, now: float) -> None:
        """Hold an answer against its prediction; too many misses make the worker doubted."""
        doubt = self.predictions.compare(worker, answer, now)
        if doubt is not None:
            self._doubt(worker, doubt)
