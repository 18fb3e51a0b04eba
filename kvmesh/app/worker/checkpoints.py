"""What a sidecar knows of its engine, given to the routers and taken back from them."""

from collections.abc import Mapping
from typing import Final

from kvmesh.actors.checkpoints import (
    PART_BYTES,
    CheckpointPart,
    OfferCheckpoint,
    OfferTaken,
    TakeCheckpoint,
)
from kvmesh.actors.kernel import Message
from kvmesh.actors.publisher import Publisher
from kvmesh.app.members.engine_feed import EngineFeed
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.checkpoint import (
    MOST_BYTES,
    decode_checkpoint,
    encode_checkpoint,
)
from kvmesh.errors import CodecError
from kvmesh.ports import Handler
from kvmesh.transport.zmq.subscriber import EventSubscription

LONGEST_WHY: Final = 200


class Checkpoints:
    """Answers the two commands about one rank's checkpoint.

    One checkpoint is kept while its parts are fetched, and the parts of one offer until it is
    whole: `MOST_BYTES` each.
    """

    def __init__(self, worker: WorkerId, publisher: Publisher) -> None:
        self._worker = worker
        self._publisher = publisher
        self._feed: EngineFeed | None = None
        self._source: EventSubscription | None = None
        self._taken_seq = -1
        self._taken = b""
        self._offered: list[bytes] = []

    def attach(self, feed: EngineFeed, source: EventSubscription) -> None:
        """Follow the engine by `source` from now on."""
        self._feed, self._source = feed, source

    def handlers(self) -> Mapping[type[Message], Handler]:
        """Return what answers the commands."""
        return {TakeCheckpoint: self._take, OfferCheckpoint: self._offer}

    async def _take(self, command: TakeCheckpoint) -> CheckpointPart:
        if command.worker != self._worker:
            raise CodecError(f"checkpoint of {command.worker!r} asked for, this is {self._worker}")
        if command.part == 0:
            checkpoint = self._publisher.checkpoint()
            if checkpoint is None:
                raise CodecError("not all is known of the engine")
            self._taken, self._taken_seq = encode_checkpoint(checkpoint), checkpoint.seq
            if len(self._taken) > MOST_BYTES:
                self._taken, self._taken_seq = b"", -1
                raise CodecError(f"the checkpoint is larger than {MOST_BYTES} bytes")
        elif command.seq != self._taken_seq:
            raise CodecError(f"the checkpoint at batch {command.seq} is not kept any more")
        parts = max(1, -(-len(self._taken) // PART_BYTES))
        start = command.part * PART_BYTES
        part = CheckpointPart(self._taken_seq, parts, self._taken[start : start + PART_BYTES])
        if command.part + 1 >= parts:
            self._taken, self._taken_seq = b"", -1
        return part

    async def _offer(self, command: OfferCheckpoint) -> OfferTaken:
        """Take one part; with the last one ask the engine's publisher for what followed."""
        if command.part == 0:
            self._offered = []
        if command.worker != self._worker or command.part != len(self._offered):
            self._offered = []
            return OfferTaken(why="its parts are out of order")
        self._offered.append(command.data)
        if command.part + 1 < command.parts:
            return OfferTaken(more=True)
        data, self._offered = b"".join(self._offered), []
        return OfferTaken(why=self._resume(data))

    def _resume(self, data: bytes) -> str:
        """Return why the checkpoint is of no use, "" when the engine is asked."""
        feed, source = self._feed, self._source
        if feed is None or source is None:
            return "its engine's events are not followed"
        try:
            checkpoint = decode_checkpoint(data)
        except CodecError as error:
            return str(error)[:LONGEST_WHY]
        if why := self._publisher.why_not_from(checkpoint):
            return why
        if self._publisher.is_whole:
            return ""
        feed.offered = checkpoint
        source.resume(checkpoint.seq, checkpoint.batch)
        return ""
