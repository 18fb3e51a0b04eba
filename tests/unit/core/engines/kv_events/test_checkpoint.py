import msgspec
import pytest

from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.checkpoint import (
    EngineCheckpoint,
    EngineMark,
    decode_checkpoint,
    encode_checkpoint,
)
from kvmesh.core.engines.kv_events.event_source import batch_digest
from kvmesh.core.engines.kv_events.residency import MOST_REFERENCES, MOST_TWINS
from kvmesh.core.engines.kv_events.saved_cache import (
    SavedBlock,
    SavedCache,
    check_saved,
    pack_block,
)
from kvmesh.errors import CodecError
from tests.reference.engines.residency import unpack_blocks

BLOCK = SavedBlock(11, 0, 0, (5,), (1,))
SAVED = SavedCache(0, 4, (0,), pack_block(BLOCK))
CHECKPOINT = EngineCheckpoint(7, 9, 0, SAVED)


def test_a_checkpoint_comes_back_from_its_bytes() -> None:
    assert decode_checkpoint(encode_checkpoint(CHECKPOINT)) == CHECKPOINT


def test_damaged_bytes_and_other_versions_are_refused() -> None:
    data = encode_checkpoint(CHECKPOINT)
    version, digest, body = msgspec.msgpack.decode(data)

    for wrong, why in (
        (data[:-1], "checkpoint of"),
        (msgspec.msgpack.encode([version + 1, digest, body]), "has version 2, this build reads 1"),
        (msgspec.msgpack.encode([version, digest + 1, body]), "is damaged"),
        (b"\x01", "checkpoint of 1 bytes"),
    ):
        with pytest.raises(CodecError, match=why):
            decode_checkpoint(wrong)


@pytest.mark.parametrize("tiers", [(), (1,), (0, 0), (0, 2, 1), (0, 64), tuple(range(9))])
def test_tiers_that_no_engine_has_are_refused(tiers: tuple[int, ...]) -> None:
    with pytest.raises(CodecError, match="has the tiers"):
        check_saved(msgspec.structs.replace(SAVED, tiers=tiers))


@pytest.mark.parametrize("changes", [{"group": -2}, {"block_size": -1}, {"block_size": 2**60}])
def test_figures_that_no_engine_has_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(CodecError, match="has group"):
        check_saved(msgspec.structs.replace(SAVED, **changes))


def test_blocks_of_several_contents_and_tiers_come_back() -> None:
    blocks = [BLOCK, SavedBlock(11, 5, 1, (8,), (3, 1)), SavedBlock(12, 5, 3, (6, 7), (0, 2))]
    saved = SavedCache(-1, 0, (0, 2), b"".join(map(pack_block, blocks)))

    cache = EngineCache(4)
    cache.load(saved)
    found = cache.save()

    assert found is not None
    assert msgspec.structs.replace(found, blocks=b"") == SavedCache(-1, 4, (0, 2), b"")
    assert set(unpack_blocks(found)) == {msgspec.structs.replace(BLOCK, counts=(1, 0)), *blocks[1:]}


@pytest.mark.parametrize(
    "data",
    [
        SAVED.blocks[:-1],
        SAVED.blocks[:20],
        pack_block(msgspec.structs.replace(BLOCK, contents=())),
        pack_block(msgspec.structs.replace(BLOCK, counts=(0,))),
        pack_block(msgspec.structs.replace(BLOCK, counts=(0, 1))),
        SAVED.blocks[:-4] + bytes(4),
        pack_block(msgspec.structs.replace(BLOCK, counts=(MOST_REFERENCES + 1,))),
        SAVED.blocks * (MOST_TWINS + 2),
    ],
)
def test_blocks_that_cannot_have_been_saved_are_refused_and_nothing_is_held(data: bytes) -> None:
    cache = EngineCache(4)
    cache.load(SAVED)

    with pytest.raises(CodecError):
        cache.load(msgspec.structs.replace(SAVED, blocks=data))

    assert cache.dump() == []


def test_more_blocks_than_are_followed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmesh.core.engines.kv_events.residency.MOST_BLOCKS", 1)
    other = pack_block(SavedBlock(12, 5, 0, (6,), (1,)))

    with pytest.raises(CodecError, match="are none, or too many"):
        EngineCache(4).load(msgspec.structs.replace(SAVED, blocks=SAVED.blocks + other))


def test_a_mark_digests_the_batch_that_was_read_last() -> None:
    mark = EngineMark()
    assert (mark.seq, mark.digest()) == (-1, 0)

    mark.move(3, b"three")

    assert (mark.seq, mark.digest(), mark.digest()) == (3, batch_digest(b"three"), mark.digest())
    assert EngineMark(7, 9).digest() == 9
