"""Decisions that ended, as rows of a trace."""

from typing import Final

from kvmesh._native import Record
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow

CLIENT_ERROR: Final = 400


def keep_record(ring: TraceRing, record: Record, ended_s: float) -> None:
    """Keep an ended request as a row of a trace, if it was work for its worker."""
    first_s = record.first_token_s
    if record.status >= CLIENT_ERROR or (record.state != "finished" and first_s is None):
        return
    usage, held_ms = record.reported, record.held_ms or 0.0
    tokens = (usage.completion_tokens if usage is not None else 0) or record.output_tokens
    # Hashes of blocks of another size, from before a change of it, would match nothing.
    other_size = record.block_size * ring.stride != ring.block_tokens
    if record.traced is None or other_size:
        ring.count_request(record.prompt_tokens, record.decided_s, ended_s)
        return
    itl_ms = None
    if first_s is not None and tokens > 1:
        itl_ms = max(0.0, ended_s - first_s) * 1000.0 / (tokens - 1)
    row = TraceRow(
        ended_s=ended_s,
        at_s=record.decided_s - held_ms / 1000.0,
        prompt_tokens=record.prompt_tokens,
        output_tokens=max(1, tokens),
        worker=record.worker,
        traced=record.traced,
        ttft_ms=None if record.ttft_ms is None else held_ms + record.ttft_ms,
        itl_ms=itl_ms,
        cached_tokens=_cached_tokens(record),
    )
    ring.add(row, ended_s)


def _cached_tokens(record: Record) -> int:
    """Return what its engine says it reused of the prompt, else what was predicted."""
    usage = record.reported
    cached = None if usage is None else usage.cached_tokens
    if cached is None:
        cached = record.overlap_blocks * record.block_size
    return max(0, min(cached, record.prompt_tokens))
