"""What became of all requests since the start: durations and prompt tokens, for metrics."""

from kvmesh.core.insight.decision_record import DecisionRecord
from kvmesh.core.insight.histogram import SECONDS, Histogram


class TrafficTotals:
    """Counts ended requests. Tokens are prompt tokens of requests that finished.

    `best_tokens` are what the worker that held most of a prompt held of it, `predicted_tokens` what
    the chosen one did: the difference is overlap given up for load. Both are of requests for
    which caches were looked up.
    """

    def __init__(self) -> None:
        self.ttft_s = Histogram(SECONDS)
        self.itl_s = Histogram(SECONDS)
        self.duration_s = Histogram(SECONDS)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.best_tokens = 0
        self.predicted_tokens = 0

    def count(self, record: DecisionRecord) -> None:
        """Count a request that ended."""
        assert record.ended_s is not None
        duration_s = max(0.0, record.ended_s - record.decided_s)
        output = record.reported.completion_tokens if record.reported is not None else 0
        if record.state != "finished":
            return
        self.duration_s.observe(duration_s)
        decision = record.decision
        size = decision.chosen.block_size
        self.prompt_tokens += decision.chosen.prompt_tokens
        self.output_tokens += output
        self.predicted_tokens += decision.overlap_blocks * size
        self.best_tokens += max(decision.best_overlap_blocks, decision.overlap_blocks) * size
        if record.ttft_ms is None:
            return
        ttft_s = record.ttft_ms / 1000.0
        self.ttft_s.observe(ttft_s)
        if output > 1:
            self.itl_s.observe(max(0.0, duration_s - ttft_s) / (output - 1))
