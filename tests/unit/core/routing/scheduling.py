"""Schedulers over small fleets, and requests for them."""

import random

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

NAMES = [WorkerId(f"w{number}") for number in range(1, 5)]
W1, W2, W3, W4 = NAMES


def make_scheduler(
    *workers: WorkerId, seed: int = 1, events: bool = True, routed: bool = False, **options: object
) -> Scheduler:
    """Return a scheduler over `workers`, else over four, with options of `RouterOptions`."""
    membership = Membership()
    for worker in workers or NAMES:
        membership.add(worker, 0.0)
    router = RouterOptions(**options)  # type: ignore[arg-type]  # any option
    return Scheduler(
        router,
        random.Random(seed),
        membership=membership,
        sequences=new_sequences(router.block_size),
        index=KvIndex() if events else None,
        routed=new_approx() if routed else None,
    )


def hashes_of(family: int, blocks: int) -> list[int]:
    return [family * 100_000 + depth for depth in range(1, blocks + 1)]


def make_request(
    request_id: str, blocks: int = 10, family: int = 0, **wishes: object
) -> RouteRequest:
    hashes = BlockHashes.of(hashes_of(family, blocks), 16)
    return RouteRequest(request_id, hashes, blocks * 16, **wishes)  # type: ignore[arg-type]  # any wish


def decide(scheduler: Scheduler, request: RouteRequest, now: float = 0.0) -> Decision:
    return scheduler.schedule(request, now).record.decision


def index_of(scheduler: Scheduler) -> KvIndex:
    index = scheduler.overlaps.index
    assert isinstance(index, KvIndex)
    return index


def store(
    scheduler: Scheduler, worker: WorkerId, blocks: int, family: int = 0, tier: int = 0
) -> None:
    index_of(scheduler).store(worker, ROOT, pack_hashes(hashes_of(family, blocks)), tier=tier)
