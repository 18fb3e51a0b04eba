"""Messages by which a sidecar's knowledge of its engine is kept, and given to its successor."""

from typing import Annotated, Final

from msgspec import Meta

from kvmesh.actors.kernel import Message
from kvmesh.bounds import MaybeName, Sequence
from kvmesh.core.blocks.events import WorkerName
from kvmesh.core.engines.kv_events.checkpoint import MOST_BYTES, EngineCheckpoint

PART_BYTES: Final = 256 * 1024
"""Of a checkpoint in one message: a server may take 512 KiB."""

MOST_PARTS: Final = MOST_BYTES // PART_BYTES

Part = Annotated[int, Meta(ge=0, lt=MOST_PARTS)]
Parts = Annotated[int, Meta(ge=1, le=MOST_PARTS)]
Bytes = Annotated[bytes, Meta(max_length=PART_BYTES)]


class TakeCheckpoint(Message, frozen=True, tag="take-checkpoint"):
    """Answer with a part of what is known of the engine; part 0 is taken now, the others are of the
    checkpoint at the engine's batch `seq`. Sent as `Resync` is.
    """

    worker: WorkerName
    part: Part = 0
    seq: Sequence = 0


class CheckpointPart(Message, frozen=True):
    """One of `parts` parts, with up to `PART_BYTES` of the checkpoint at batch `seq`."""

    seq: Sequence
    parts: Parts
    data: Bytes


class OfferCheckpoint(Message, frozen=True, tag="offer-checkpoint"):
    """Part number `part` of `parts` of what a sidecar before knew: go on from there if the engine
    is the same still. Sent as `Resync` is, parts in order.
    """

    worker: WorkerName
    part: Part
    parts: Parts
    data: Bytes


class OfferTaken(Message, frozen=True):
    """What became of an offer: `more` parts are wanted, or `why` it is of no use."""

    more: bool = False
    why: MaybeName = ""


class EngineResumed(Message, frozen=True):
    """The engine's publisher is that of the checkpoint, and repeats what it sent since."""

    checkpoint: EngineCheckpoint
