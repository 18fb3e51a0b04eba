"""A message of booking records, folded in one call of the compiled core."""

from typing import Protocol, cast

from kvmesh.compiled import NATIVE
from kvmesh.core.routing.peers import event_fold
from kvmesh.core.routing.peers.event_fold import EventFold
from kvmesh.core.routing.peers.peer import Peer
from kvmesh.core.routing.scheduler import Scheduler


class MessageFold(Protocol):
    """Folds the messages of peers that are known (kvmesh/native/message_fold.c) as `PeerBookings`
    does, record by record as `EventFold`, of which it asks what is rare.

    `applied` and `gaps` count since the start.
    """

    applied: int
    gaps: int

    def fold(self, peer: Peer, data: bytes, now: float, /) -> bool | None:
        """Fold a message; return whether the peer is known completely.

        None, and nothing is done: it has another format or epoch, or is not as it must be. Raises
        `CodecError`, and nothing is done, for shares that cannot be read.
        """
        ...


def new_message_fold(scheduler: Scheduler, events: EventFold) -> MessageFold | None:
    """Return what folds messages into `scheduler`, None where not all of it is compiled."""
    overlaps = scheduler.overlaps
    if NATIVE is None:
        return None
    membership = scheduler.workers.membership
    return cast(
        "MessageFold",
        NATIVE.MessageFold(
            events=events,
            sequences=scheduler.sequences,
            speeds=scheduler.speeds,
            heard=overlaps.heard,
            members=membership.by_name,
            strangers=events.strangers,
            out=membership.health.out,
            distrusted=scheduler.workers.distrusted,
            ttls=(scheduler.options.predict_ttl_s, scheduler.options.approx_ttl_s),
            has_index=overlaps.index is not None,
            limits=(event_fold.MOST_BOOKINGS, event_fold.MOST_IN_ALL),
        ),
    )
