"""What the log says of one engine's KV cache: a line a batch at debug, a summary now and then."""

from collections.abc import Sequence
from typing import Final

from kvmesh.actors.kernel import Fields, Log
from kvmesh.actors.messages import WorkerLoad
from kvmesh.core.blocks.events import HASH_BYTES, Event, Removed, Stored, WorkerId
from kvmesh.core.insight.summary_pace import SummaryPace

SUMMARY: Final = "KV cache: blocks created and removed, prefix hits and misses"
BATCH: Final = "KV blocks created and removed"


class CacheReport:
    """Counts what a worker's events create and remove, and words it with its engine's own figures.

    `each_batch`: every batch is a line at debug. Summaries count since the one before.
    """

    def __init__(self, worker: WorkerId, *, each_batch: bool = False) -> None:
        self._worker = worker
        self._each_batch = each_batch
        self._pace = SummaryPace()
        self._created = self._removed = 0
        self._told = (0, 0)
        self._told_load = WorkerLoad()

    def count(self, events: Sequence[Event]) -> tuple[Log, ...]:
        """Count a batch's events; return its line, if batches have any. O(events)."""
        created = removed = 0
        for event in events:
            if isinstance(event, Stored):
                created += len(event.hashes) // HASH_BYTES
            elif isinstance(event, Removed):
                removed += len(event.hashes) // HASH_BYTES
            else:
                removed = self._created + created - self._removed
        self._created += created
        self._removed += removed
        if not self._each_batch:
            return ()
        fields: Fields = {"worker": self._worker, "created": created, "removed": removed}
        return (Log("debug", BATCH, fields),)

    def sum_up(self, load: WorkerLoad, now: float) -> tuple[Log, ...]:
        """Return the summary, if one is due; `load` is what the engine reported last."""
        created, removed = self._created - self._told[0], self._removed - self._told[1]
        asked = _grown(load.cache_queried_tokens, self._told_load.cache_queried_tokens)
        hit = _grown(load.cache_hit_tokens, self._told_load.cache_hit_tokens)
        if not self._pace.due(now, changed=bool(created or removed or asked)):
            return ()
        self._told, self._told_load = (self._created, self._removed), load
        fields: dict[str, str | int | float | bool | None] = {
            "worker": self._worker,
            "kv_blocks_created": created,
            "kv_blocks_removed": removed,
            "kv_blocks": self._created - self._removed,
            "cache_usage": round(load.gpu_cache_usage_perc, 3),
        }
        if asked:
            fields["hit_tokens"] = hit
            fields["miss_tokens"] = max(0, asked - hit)
            fields["hit_rate"] = round(hit / asked, 3)
        return (Log("info", SUMMARY, fields),)


def _grown(now: int, before: int) -> int:
    """Return what a counter grew by; one that fell began anew with its engine."""
    return now - before if now >= before else now
