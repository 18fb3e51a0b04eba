"""The fleet as the governor of programs sees it."""

from collections.abc import Collection

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.scheduler import Scheduler


class GovernedFleet:
    """A scheduler's workers: who is usable, the tokens their caches hold, and `ms_per_token`, how
    long each is believed to compute an uncached prompt token.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.ms_per_token = scheduler.speeds.ms_per_token

    def workers(self, now: float) -> Collection[WorkerId]:
        """Return the workers that may get requests, the same object until that changes."""
        return self._scheduler.workers.everyone(now)

    def capacity_tokens(self, worker: WorkerId) -> int:
        """Return how many tokens a worker's cache holds by its own word, or as its answers taught;
        0 when nothing is known.
        """
        scheduler = self._scheduler
        state = scheduler.workers.known.get(worker)
        reported = 0 if state is None else state.capacity_blocks
        _, learned = scheduler.overlaps.kept(worker)
        return min(reported or learned, learned or reported) * scheduler.options.block_size

    def contexts(self, worker: WorkerId) -> int:
        """Return how many prompts a worker keeps, whatever their length; 0: any number."""
        return self._scheduler.overlaps.kept(worker)[0]

    def active_tokens(self, worker: WorkerId) -> int:
        """Return how many tokens of its cache the requests under way hold."""
        scheduler = self._scheduler
        return scheduler.sequences.loads(worker).active_blocks * scheduler.options.block_size

    def seen_ms_per_token(self, worker: WorkerId, tokens: int) -> float:
        """Return how long a worker was seen to compute a prompt of so many tokens, a token, with a
        step's fixed time; 0 before it computed any: what is believed of it then is no measurement.
        """
        speeds = self._scheduler.speeds
        if not speeds.prefill_ratio(worker).tokens:
            return 0.0
        return speeds.ms_per_token(worker) * (1.0 + speeds.steps.step_tokens / max(1, tokens))
