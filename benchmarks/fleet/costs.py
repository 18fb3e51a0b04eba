"""What each message of a bucket costs whom, in processor time."""

from collections.abc import Iterable
from typing import Final

import msgspec


class RequestCosts(msgspec.Struct, frozen=True):
    """Of one request of a size: its replica's, each sibling's, us; bytes of its bookings on NATS;
    blocks that its worker reports as stored and as removed.
    """

    own_us: float
    sibling_us: float
    booking_bytes: float
    blocks: float


class PlaneCosts(msgspec.Struct, frozen=True):
    """Of everything that does not depend on a request's size. us of one processor.

    A replica's: a chunk of a stream it forwards, a message of bookings beside what is in it, a
    record of the journal beside its blocks, a block, a worker's heartbeat, a replica's heartbeat.
    A server's: a message in, each delivery, a kilobyte in or out, an append to the journal with
    its acknowledgement.
    """

    chunk_us: float = 14.0
    bookings_us: float = 20.0
    record_us: float = 16.0
    block_us: float = 0.03
    worker_beat_us: float = 44.0
    replica_beat_us: float = 60.0
    nats_in_us: float = 1.5
    nats_out_us: float = 1.0
    nats_kilobyte_us: float = 0.2
    append_us: float = 4.0


MEASURED: Final = {
    "400 B": RequestCosts(own_us=44.0, sibling_us=2.2, booking_bytes=80.0, blocks=3.0),
    "4 KB": RequestCosts(own_us=56.0, sibling_us=3.9, booking_bytes=217.0, blocks=31.0),
    "100 KB": RequestCosts(own_us=243.0, sibling_us=17.0, booking_bytes=483.0, blocks=780.0),
}
"""Recorded on the machine of docs/measured/fleet.md; `bench_fleet --costs FILE`: another run's.

Blocks are of 16 tokens of 4 bytes, half of a prompt's not cached before. The times are of byte
tokens, four times as many blocks.
"""


class Figure(msgspec.Struct, frozen=True):
    """A line of a benchmark's JSON."""

    title: str = ""
    candidate: str = ""
    figure: str = ""
    median: float | None = None


def costs_from(lines: Iterable[bytes]) -> tuple[dict[str, RequestCosts], PlaneCosts]:
    """Return the costs that `bench_replicas --json` found; what it did not is as recorded."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        one = msgspec.json.decode(line, type=Figure) if line.strip() else Figure()
        if one.median is not None:
            found.setdefault(one.candidate, {})[one.figure] = one.median
    sizes = {
        name: RequestCosts(
            own_us=measured.get("replica us", recorded.own_us),
            sibling_us=measured.get("sibling us", recorded.sibling_us),
            booking_bytes=measured.get("bytes", recorded.booking_bytes),
            blocks=recorded.blocks,
        )
        for name, recorded in MEASURED.items()
        for measured in [found.get(name, {})]
    }
    plane = found.get("plane", {})
    known = {
        name: plane[name.removesuffix("_us").replace("_", " ") + " us"]
        for name in PlaneCosts.__struct_fields__
        if name.removesuffix("_us").replace("_", " ") + " us" in plane
    }
    return sizes, msgspec.structs.replace(PlaneCosts(), **known)
