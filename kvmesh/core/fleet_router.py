"""One router replica of a simulated fleet: the production scheduler and its bookings."""

from collections.abc import Sequence
from typing import Final

from kvmesh.core.approx import ApproxIndex
from kvmesh.core.decision import Decision, RouteRequest, RouterOptions, WorkerInfo
from kvmesh.core.events import WorkerId
from kvmesh.core.fleet_request import FleetRequest
from kvmesh.core.hashing import BlockHashes
from kvmesh.core.index import KvIndex
from kvmesh.core.loads import Demand
from kvmesh.core.membership import Membership
from kvmesh.core.scheduler import Scheduler
from kvmesh.core.selection import Random
from kvmesh.core.sequences import ActiveSequences

KEY_TOKENS: Final = 256
"""Tokens between two sharing keys, as with 16 blocks of 16."""


class FleetRouter:
    """Decides for its own requests and counts its peers'.

    All replicas hear the same events at the same time, so they may share one `index`.
    """

    def __init__(
        self,
        name: str,
        policy: RouterOptions,
        workers: Sequence[tuple[WorkerId, int]],
        index: KvIndex | None,
        rng: Random,
    ) -> None:
        """Know `workers`, each with its KV blocks."""
        self.name = name
        self.sequences = ActiveSequences(
            policy.block_size, stride=max(1, KEY_TOKENS // policy.block_size)
        )
        membership = Membership()
        self.scheduler = Scheduler(
            policy,
            rng,
            membership=membership,
            sequences=self.sequences,
            index=index,
            routed=ApproxIndex(),
        )
        for worker, blocks in workers:
            membership.add(worker, 0.0)
            self.scheduler.workers.describe(worker, WorkerInfo(total_blocks=blocks))

    def schedule(
        self, request: FleetRequest, now: float, named: WorkerId | None = None
    ) -> Decision:
        """Choose a worker, or take the one named, and book the request there."""
        trace, block_size = request.trace, self.scheduler.options.block_size
        wanted = RouteRequest(
            request_id=str(trace.index),
            hashes=BlockHashes.of(request.hashes, block_size),
            prompt_tokens=trace.input_tokens,
            expected_output_tokens=trace.output_tokens,
            pinned_worker=named,
        )
        return self.scheduler.schedule(wanted, now)

    def demand(self, request_id: str) -> tuple[WorkerId, Demand] | None:
        """Return what to tell the peers of a request booked here; None when it has ended."""
        booking = self.sequences.booking(request_id)
        if booking is None:
            return None
        demand = Demand(
            prompt_tokens=booking.prompt_tokens,
            uncached_tokens=booking.uncached_tokens,
            expected_output_tokens=booking.expected_blocks * self.sequences.block_size,
            keys=booking.keys,
            hashes=booking.hashes,
        )
        return booking.worker, demand
