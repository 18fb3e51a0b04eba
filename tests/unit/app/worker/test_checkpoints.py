"""A checkpoint is given in parts to who asks for this worker's, and taken back likewise."""

import pytest

from kvmesh.actors.checkpoints import OfferCheckpoint, OfferTaken, TakeCheckpoint
from kvmesh.app.worker.checkpoints import Checkpoints
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.checkpoint import decode_checkpoint
from kvmesh.errors import CodecError
from tests.unit.actors.test_publisher import Driver, W
from tests.unit.actors.test_publisher_goes_on import resumable

OTHER = WorkerId("other")


async def test_a_checkpoint_is_kept_until_its_last_part_is_given_and_is_one_workers() -> None:
    driver = Driver()
    known = resumable(driver)
    checkpoints = Checkpoints(W, driver.publisher)

    part = await checkpoints._take(TakeCheckpoint(W))

    assert (part.parts, part.seq, decode_checkpoint(part.data)) == (1, known.seq, known)
    with pytest.raises(CodecError, match="not kept any more"):
        await checkpoints._take(TakeCheckpoint(W, part=1, seq=part.seq))
    with pytest.raises(CodecError, match="this is w"):
        await checkpoints._take(TakeCheckpoint(OTHER))
    refused = await checkpoints._offer(OfferCheckpoint(OTHER, 0, 1, part.data))
    assert refused == OfferTaken(why="its parts are out of order")
