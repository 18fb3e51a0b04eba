"""Journal messages of a worker, chosen by bytes: in order or not, of either format, with ends."""

from collections.abc import Iterator
from typing import Final

import msgspec

from kvmesh.core.blocks.events import (
    ENDS,
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Reuse,
    Stored,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from tests.fuzz.stories.engine_batches import Chooser

BLOCKS: Final = (1, 2, 255, 2**64 - 1, 1 << 63, *(number << 8 | 7 for number in range(11)))
TIERS: Final = (*(0,) * 16, *(ENDS,) * 8, ENDS + 1, 1, 3, 255)
SKEWS: Final = (*(0,) * 30, 1, -1)
MAX_MESSAGES: Final = 40


def build_messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a worker whose number is the next one, mostly."""
    chooser = Chooser(data)
    epoch = first = 1
    for number in range(MAX_MESSAGES):
        if chooser.is_empty:
            return
        events = [_event(chooser) for _ in range((1, 2, 3, 20)[chooser.below(4)])]
        if number == 0 and chooser.below(2):
            events = [Reuse(), Stored(ROOT, pack_hashes(BLOCKS[:2]))]
        first = max(0, first + SKEWS[chooser.below(len(SKEWS))])
        epoch = max(0, epoch + SKEWS[chooser.below(len(SKEWS))])
        batch = Batch(VERSION, epoch, first, events)
        form = chooser.below(12)
        if form == 1:
            plain = msgspec.to_builtins(batch, builtin_types=(bytes,))
            yield msgspec.msgpack.encode([*plain[:3], [[*one, 0] for one in plain[3]]])
        elif form == 2:
            yield encode_batch(batch)[: chooser.below(60)]
        elif form == 3:
            yield (
                bytes([0x94, batch.version, 0xCF])
                + epoch.to_bytes(8, "big")
                + (b"\xcd" + first.to_bytes(2, "big") + b"\xdd" + len(events).to_bytes(4, "big"))
                + b"".join(msgspec.msgpack.encode(one) for one in events)
            )
        else:
            yield encode_batch(batch)
        first += len(events)


def _event(chooser: Chooser) -> Event:
    kind = chooser.below(12)
    if kind == 10 and chooser.below(4) == 0:
        return Reuse(chooser.below(2), chooser.below(2))
    if kind == 11 and chooser.below(8) == 0:
        return Cleared()
    tier = TIERS[chooser.below(len(TIERS))]
    run = pack_hashes([BLOCKS[chooser.below(len(BLOCKS))] for _ in range(chooser.below(5))])
    if kind >= 7:
        return Removed(run, tier)
    parent = ROOT if kind < 4 else BLOCKS[chooser.below(len(BLOCKS))]
    return Stored(parent, run + bytes(chooser.below(256) == 255), tier)
