"""What a router's log says of routing: every candidate at debug, a summary now and then."""

import asyncio
from typing import Final

from structlog.typing import FilteringBoundLogger

from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.decision_lines import decision_lines
from kvmesh.core.insight.summary_pace import SummaryPace
from kvmesh.core.routing.decision import Decision

LOOK_S: Final = 1.0
SUMMARY: Final = "routing summary: overlap, cache hits and misses, KV blocks created and removed"


def log_routed(log: FilteringBoundLogger, decision: Decision) -> None:
    """Write a decision's lines; to be asked for at debug alone, they cost more than deciding."""
    lines, request_id = decision_lines(decision), decision.request_id
    for line in lines.formulas:
        log.debug("routing candidate", request_id=request_id, formula=line)
    log.debug(
        "routing decision",
        request_id=request_id,
        worker=decision.worker,
        overlap=lines.overlaps,
        load=lines.loads,
        final=lines.finals,
        selected=lines.selected,
    )


def log_accessed(
    log: FilteringBoundLogger, worker: WorkerId, request_id: str, usage: Usage | None
) -> None:
    """Log what the engine says it found cached."""
    cached = usage.cached_tokens if usage is not None else None
    log.debug(
        "KV blocks accessed",
        worker=worker,
        request_id=request_id,
        cached_tokens="unknown" if cached is None else cached,
    )


class RoutingSummary:
    """Sums up what was routed since the summary before. `prompt_tokens` and `saved_tokens` are of
    all answers, `overlap_tokens` predicted of them; hits and misses of those whose engines tell.
    """

    def __init__(self, context: RoutingContext, index: KvIndex) -> None:
        self._context = context
        self._index = index
        self._pace = SummaryPace()
        self._reported: dict[str, int] = {}

    async def run(self) -> None:
        """Write a summary whenever one is due, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.check(self._context.clock())

    def check(self, now: float) -> None:
        """Write the summary, if one is due."""
        context, index = self._context, self._index.statistics()
        tokens = context.routing.tokens
        counted = {
            "requests": context.counters.requests,
            "prompt_tokens": tokens.prompt,
            "saved_tokens": tokens.saved,
            "overlap_tokens": tokens.predicted + tokens.saved - tokens.cached,
            "hit_tokens": tokens.cached,
            "miss_tokens": tokens.reported - tokens.cached,
            "kv_blocks_created": index.stored,
            "kv_blocks_removed": index.removed,
        }
        if not self._pace.due(now, changed=any(counted.values()) and counted != self._reported):
            return
        logged, self._reported = self._reported, counted
        new = {name: count - logged.get(name, 0) for name, count in counted.items()}
        reported = new["hit_tokens"] + new["miss_tokens"]
        rate = {"hit_rate": round(new["hit_tokens"] / reported, 3)} if reported else {}
        context.log.info(SUMMARY, **new, **rate, kv_blocks=index.entries)
