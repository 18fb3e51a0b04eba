"""What real hybrid engines told and reused, byte for byte: every reuse is foretold exactly."""

from pathlib import Path

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.index.index import KvIndex
from tests.unit.core.engines.recordings import FIXTURES, Batch, load

WORKER = WorkerId("w")
BLOCK_SIZE = 32
RECORDINGS = sorted(FIXTURES.glob("*.recording.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_every_reuse_of_a_recorded_engine_is_foretold(path: Path) -> None:
    cache, index = EngineCache(BLOCK_SIZE), KvIndex()
    foretold: list[tuple[int, int]] = []
    for recorded in load(path):
        if isinstance(recorded, Batch):
            for event in cache.take(bytes.fromhex(recorded.hex)):
                index.apply(WORKER, event)
            continue
        # The engine computes the last token of a prompt, whatever it holds.
        hashes = BlockHashes(recorded.prompt[:-1], BLOCK_SIZE)
        foretold.append((index.find_matches(hashes).get(WORKER, 0), recorded.cached // BLOCK_SIZE))

    predicted, reused = zip(*foretold, strict=True)
    assert predicted == reused
    assert sum(one > 0 for one in reused) > len(reused) // 4


def test_there_are_recordings_of_windows_and_of_mamba_states() -> None:
    assert len(RECORDINGS) == 2
