"""One other replica, as far as it was heard."""

from typing import Final, cast

from kvmesh.compiled import NATIVE


class Peer:
    """How far a peer was heard, whether all of it, and which bookings a state leaves out.

    `retold` are bookings that came with a state: when they really began is not known. `workers` are
    the names that its records give by number, `as_name_key` of it. In C where there is a compiled
    core (kvmesh/native/peer.c), which finds bookings by their number: `new_peer` knows.
    """

    __slots__ = (
        "booked",
        "complete",
        "counted_s",
        "epoch",
        "name",
        "next_seq",
        "renewed_s",
        "retold",
        "unconfirmed",
        "workers",
    )

    def __init__(self, name: str, epoch: int, now: float) -> None:
        self.name = name
        self.epoch = epoch
        self.renewed_s = now
        self.next_seq = 1
        self.complete = True
        self.unconfirmed: set[str] | None = None
        self.retold: set[str] = set()
        self.workers: dict[bytes, str] = {}
        self.booked = 0
        self.counted_s = now


def as_name_key(number: int) -> bytes:
    """Return the number of a worker's name as a key: an int of its choice would be placed by it."""
    return number.to_bytes(4, "little")


new_peer: Final = cast("type[Peer]", NATIVE.Peer) if NATIVE else Peer
"""Return a peer of which nothing was heard yet."""
