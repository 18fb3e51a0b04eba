"""A message of booking records, folded in one call of the compiled core."""

from kvmesh._native import MessageFold
from kvmesh.core.routing.peers import event_fold
from kvmesh.core.routing.peers.event_fold import EventFold
from kvmesh.core.routing.scheduler import Scheduler


def new_message_fold(scheduler: Scheduler, events: EventFold) -> MessageFold:
    """Return what folds messages into `scheduler`."""
    overlaps = scheduler.overlaps
    membership = scheduler.workers.membership
    return MessageFold(
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
    )
