"""What a bucket serves before its replicas are too busy, by sums of what each message costs."""

from typing import Final

from benchmarks.fleet.costs import PlaneCosts, RequestCosts
from benchmarks.fleet.plane import Fleet

USED: Final = 0.8
"""Of each replica's processor."""

BATCH_BLOCKS: Final = 64
US: Final = 1e6


def standing_share(fleet: Fleet, costs: PlaneCosts) -> float:
    """Return the share of a replica's processor that goes into what no request brings: heartbeats,
    records without their blocks, siblings' messages without the bookings in them.
    """
    beats = fleet.workers * costs.worker_beat_us + fleet.replicas * costs.replica_beat_us
    records = fleet.workers / fleet.batch_s * costs.record_us if fleet.events else 0.0
    bookings = (fleet.replicas - 1) / fleet.flush_s * costs.bookings_us
    return (beats / fleet.beat_s + records + bookings) / US


def most_requests_s(fleet: Fleet, request: RequestCosts, costs: PlaneCosts) -> float:
    """Return the requests a second that take `USED` of each replica."""
    own = (request.own_us + fleet.chunks * costs.chunk_us) / fleet.replicas
    siblings = request.sibling_us * (fleet.replicas - 1) / fleet.replicas
    blocks = 2.0 * request.blocks * costs.block_us if fleet.events else 0.0
    left = max(0.0, USED - standing_share(fleet, costs))
    return US * left / (own + siblings + blocks)


def most_chunks_s(replicas: int, costs: PlaneCosts) -> float:
    """Return the chunks of streams a second, if that is all that replicas do."""
    return replicas * USED * US / costs.chunk_us


def most_blocks_s(costs: PlaneCosts) -> float:
    """Return the blocks a second that replicas can follow, in batches of 64; their number does not
    matter.
    """
    return USED * US / (costs.record_us / BATCH_BLOCKS + costs.block_us)


def most_workers(fleet: Fleet, costs: PlaneCosts) -> float:
    """Return how many workers' heartbeats and records take `USED` of each replica."""
    each = costs.worker_beat_us / fleet.beat_s + costs.record_us / fleet.batch_s
    return US * USED / each
