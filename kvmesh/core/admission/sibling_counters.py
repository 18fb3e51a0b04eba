"""What siblings charged since they were heard last, from counters that only grow."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_COUNT, MAX_FIGURE, Figure, MaybeName
from kvmesh.core.admission.shares import ShareRow

MAX_PEERS: Final = 64
"""Siblings, gone ones among them, whose counters are remembered."""


class _Peer(msgspec.Struct, eq=False):
    """What a sibling told last; accounts opened after `contact` began with 0 while it was heard."""

    epoch: int
    contact: int
    rows: OrderedDict[int, ShareRow] = msgspec.field(default_factory=OrderedDict)


class SiblingCounters:
    """The rows of each sibling, of `most` tenants: news that is lost, repeated or late changes
    nothing, and a sibling that is away for a while is not counted twice.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def sizes(self) -> list[int]:
        """Return of how many tenants each sibling's counters are remembered."""
        return [len(one.rows) for one in self._peers.values()]

    def meet(self, peer: str, epoch: int, serial: int) -> bool:
        """Take note of a message of a sibling; return whether it is of its present life."""
        known = self._peers.get(peer)
        if known is None or epoch > known.epoch:
            self._peers[peer] = _Peer(epoch, serial)
            if len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
        elif epoch < known.epoch:
            return False
        self._peers.move_to_end(peer)
        return True

    def take(self, peer: str, row: ShareRow) -> tuple[int, int] | None:
        """Return the tokens charged and returned that are new; None for a row that is old."""
        known = self._peers[peer]
        last = known.rows.get(row.key)
        if last is not None and row.born < last.born:
            return None
        if last is not None and row.born == last.born:
            charged = max(0, row.charged - last.charged)
            returned = max(0, row.returned - last.returned)
            row = msgspec.structs.replace(
                row, charged=last.charged + charged, returned=last.returned + returned
            )
        elif row.born > known.contact:
            charged, returned = row.charged, row.returned
        else:
            charged = returned = 0
        known.rows[row.key] = row
        known.rows.move_to_end(row.key)
        if len(known.rows) > self.most:
            known.rows.popitem(last=False)
        return charged, min(returned, row.charged)


Number = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
Real = Annotated[float, Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Bounds = Annotated[dict[MaybeName, Number | Real | MaybeName], Meta(max_length=64)]


class SharedLimits(msgspec.Struct, frozen=True):
    """Bounds set at one replica, `by` its name, `at` a Unix time; `at` 0: those of its settings."""

    at: Figure = 0.0
    by: MaybeName = ""
    limits: Bounds = {}


def newest(reported: Iterable[SharedLimits]) -> SharedLimits:
    """Return the last change; all replicas choose the same one of two at the same time."""
    return max(reported, key=lambda one: (one.at, one.by), default=SharedLimits())
