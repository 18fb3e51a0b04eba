import msgspec
import pytest

from kvmesh.core.blocks.events import ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.engines.engine_events import EngineBatch
from kvmesh.core.engines.kv_events.cache import EngineCache, new_engine_cache
from kvmesh.errors import CodecError

TOKENS = list(range(8))
FIRST, SECOND = sequence_hashes(TOKENS, 4)
STORE = msgspec.msgpack.encode([1.0, [["BlockStored", [11, 12], None, TOKENS, 4]], 0])
REMOVE = msgspec.msgpack.encode([1.0, [["BlockRemoved", [11]]], 0])


def test_blocks_are_stored_removed_and_dumped() -> None:
    cache = new_engine_cache()

    assert cache.take(STORE) == [Stored(ROOT, pack_hashes([FIRST, SECOND]))]
    assert cache.dump() == [Stored(ROOT, pack_hashes([FIRST, SECOND]))]
    assert (cache.take(REMOVE), cache.block_size) == ([Removed(pack_hashes([SECOND, FIRST]))], 4)
    assert cache.statistics().closures[0].hidden == 1


def test_what_is_no_batch_is_counted_and_refused_in_words() -> None:
    cache = EngineCache(4)

    with pytest.raises(CodecError, match="engine batch of 1 bytes"):
        cache.take(b"\x05")

    assert cache.statistics().undecodable == 1


@pytest.mark.parametrize("why", ["no memory at all", ""])
def test_a_decoder_without_memory_is_a_batch_that_cannot_be_read(why: str) -> None:
    def decode(_payload: bytes) -> EngineBatch:
        raise MemoryError(why)

    with pytest.raises(CodecError, match="bytes: no memory"):
        EngineCache(4, decode=decode).take(STORE)


def test_blocks_to_add_that_are_none_are_refused_and_so_is_what_memory_ends_in() -> None:
    cache = EngineCache(4)
    cache.take(STORE)
    saved = cache.save()
    assert saved is not None

    with pytest.raises(CodecError, match="are none, or too many"):
        cache.add(msgspec.structs.replace(saved, blocks=b"none"))
    assert cache.dump() == []

    class Full:
        group = 0

        def fold(self, _: EngineBatch) -> None:
            raise MemoryError("no memory")

    cache._native = Full()  # type: ignore[assignment]
    with pytest.raises(CodecError, match="no memory"):
        cache.fold(cache.read(STORE))
