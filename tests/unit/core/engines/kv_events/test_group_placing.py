import struct

import pytest

from kvmesh.core.blocks.hashing import (
    extend_hash,
    namespace_root,
    sequence_hashes,
)
from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.group_placing import path_of, positions
from kvmesh.core.engines.kv_events.group_table import Place

TOKENS = list(range(8))


def packed(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


@pytest.mark.parametrize(
    ("blocks", "known", "need", "found"),
    [
        (3, [None, 7, None], 1, [0, 1, 2]),
        (5, [None, None], 3, [3, 4]),
        (5, [None, 3], 2, [2, 3]),
        (5, [None, 1, None], 3, [0, 1, 4]),
        (9, [2, None, None, 7, None], 3, [2, 5, 6, 7, 8]),
        (9, [2, None, None, 7], 2, [2, None, 6, 7]),
        (4, [3, None, 9], 2, [3, None, None]),
        (4, [-5, 1], 2, [0, 1]),
        (3, [], 2, []),
    ],
    ids=str,
)
def test_hashes_are_placed_by_those_that_are_known_and_the_end(
    blocks: int, known: list[int | None], need: int, found: list[int | None]
) -> None:
    assert positions(blocks, known, need) == found


def test_a_path_goes_up_to_the_last_hash_that_has_a_place() -> None:
    event = EngineStored((1,), None, packed(*TOKENS), 2, salt="s")
    root = namespace_root(cache_salt="s", secret=b"key")

    path = path_of(event, None, [1, None], 2, b"key")

    assert (path.root, list(path.keys)) == (root, sequence_hashes(TOKENS[:4], 2, root))
    assert list(path_of(event, None, [None], 2, b"").keys) == []


def test_extras_stand_where_their_block_begins() -> None:
    event = EngineStored((1, 2), 9, packed(*TOKENS), 4, extras=(0, 7))
    path = path_of(event, Place(5, 5, 3, 1), [0, 1], 2, b"")

    first = sequence_hashes(TOKENS[:4], 2, 3, 5)
    second = sequence_hashes(TOKENS[4:], 2, extend_hash(first[-1], 7))
    assert (path.root, list(path.contents)) == (3, first + second)
