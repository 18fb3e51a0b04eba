"""What the log says of one engine's KV cache: a line a batch at debug, a summary now and then."""

from collections.abc import Sequence
from typing import Final

from kvmesh.actors.kernel import Fields, Log
from kvmesh.actors.messages import WorkerLoad
from kvmesh.core.blocks.events import ENDS, HASH_BYTES, Cleared, Event, Reuse, Stored, WorkerId
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.group_kinds import GroupStatistics
from kvmesh.core.insight.summary_pace import SummaryPace

SUMMARY: Final = "KV cache: blocks created and removed, prefix hits and misses"
BATCH: Final = "KV blocks created and removed"
GROUPS: Final = "engine has cache groups, hits end by all of them"
LEFT_OUT: Final = "KV events that cannot be read were left out"


class CacheReport:
    """Counts what a worker's events create and remove, and words it with its engine's own figures.

    `each_batch`: every batch is a line at debug. Summaries count since the one before.
    """

    def __init__(self, worker: WorkerId, *, each_batch: bool = False) -> None:
        self._worker = worker
        self._each_batch = each_batch
        self._pace = SummaryPace()
        self._created = self._removed = 0
        self._reported = (0, 0)
        self._reported_load = WorkerLoad()

    def count(self, events: Sequence[Event]) -> tuple[Log, ...]:
        """Count a batch's events; return its line, if batches have any. O(events)."""
        created = removed = 0
        for event in events:
            if isinstance(event, Cleared):
                removed = self._created + created - self._removed
            elif isinstance(event, Reuse) or event.tier >= ENDS:
                continue
            elif isinstance(event, Stored):
                created += len(event.hashes) // HASH_BYTES
            else:
                removed += len(event.hashes) // HASH_BYTES
        self._created += created
        self._removed += removed
        if not self._each_batch:
            return ()
        fields: Fields = {"worker": self._worker, "created": created, "removed": removed}
        return (Log("debug", BATCH, fields),)

    def sum_up(self, load: WorkerLoad, now: float) -> tuple[Log, ...]:
        """Return the summary, if one is due; `load` is what the engine reported last."""
        created, removed = self._created - self._reported[0], self._removed - self._reported[1]
        asked = _grown(load.cache_queried_tokens, self._reported_load.cache_queried_tokens)
        hit = _grown(load.cache_hit_tokens, self._reported_load.cache_hit_tokens)
        if not self._pace.due(now, changed=bool(created or removed or asked)):
            return ()
        self._reported, self._reported_load = (self._created, self._removed), load
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


def engine_lines(worker: WorkerId, cache: EngineCache, events: Sequence[Event]) -> tuple[Log, ...]:
    """Return what is to be said of an engine behind a batch that led to `events`: its cache groups
    when they, or the rule of hits, are told anew, and how many events were left out, each time that
    these have doubled. O(1) unless there is something.
    """
    lines: list[Log] = []
    if len(events) > 1 and isinstance(events[1], Reuse):
        groups = cache.statistics().groups
        odd = ", ".join(one.kind for one in groups if not one.understood)
        described = ", ".join(_described(one) for one in groups)
        fields: Fields = {"worker": worker, "groups": described}
        if odd:
            fields = {**fields, "not_understood": odd, "remedy": "hits are predicted too short"}
        lines.append(Log("warning" if odd else "info", GROUPS, fields))
    if cache.odd.is_update():
        counts = cache.statistics().odd
        reasons = "; ".join(f"{reason} ({count})" for reason, count in counts[:3])
        total = sum(count for _, count in counts)
        lines.append(
            Log("warning", LEFT_OUT, {"worker": worker, "events": total, "reasons": reasons})
        )
    return tuple(lines)


def _described(group: GroupStatistics) -> str:
    window = f" of {group.window}" if group.window else ""
    return f"{group.kind or 'untold'}{window} in blocks of {group.block_size}"


def _grown(now: int, before: int) -> int:
    """Return what a counter grew by; one that fell began anew with its engine."""
    return now - before if now >= before else now
