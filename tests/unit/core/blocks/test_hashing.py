import hashlib
import struct
from array import array
from collections.abc import Sequence

import pytest

from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    namespace_root,
    pack_hashes,
    pack_tokens,
    secret_mark,
    sequence_hashes,
    unpack_hashes,
)
from kvmesh.errors import CodecError, RequestError

TOKENS = [(i * 2654435761) % 150000 for i in range(50)]
GOLDEN = [406043094676272526, 10352403485905162285, 15417060893445338149]


def packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def test_sequence_hashes_have_their_golden_values() -> None:
    assert sequence_hashes(TOKENS, 16) == GOLDEN
    assert sequence_hashes(TOKENS[:13], 4) == [
        11265009507955058027,
        4347260610591666149,
        4451426833821809060,
    ]
    assert sequence_hashes(TOKENS, 16, root=12345) == [
        9123818267714502466,
        12099666114125027234,
        4265452557269773396,
    ]


@pytest.mark.parametrize("text", ["", "abc" * 40, "a\u0105" * 60, "\U0001f600" * 90])
def test_a_strings_code_points_are_tokens(text: str) -> None:
    expected = sequence_hashes([*map(ord, text)], 16)

    assert list(BlockHashes(text, 16).upto(100)) == expected


def test_ready_made_hashes_are_taken_as_they_are() -> None:
    ready = BlockHashes.of((5, 6, 7), 16)

    assert (len(ready), ready.tokens_count, ready.block_size) == (3, 48, 16)
    assert list(ready.upto(1)) == list(ready.upto(10)) == [5, 6, 7]
    assert not BlockHashes.of([], 16).upto(1)
    known = array("Q", [1, 2])
    assert BlockHashes.of(known, 4).upto(2) is known
    assert BlockHashes.unpack(pack_hashes(known), 4).upto(2) == known
    with pytest.raises(RequestError, match="hashes are integers from 0"):
        BlockHashes.of([1, -1], 4)
    with pytest.raises(CodecError, match="packed hashes have 9 bytes"):
        BlockHashes.unpack(bytes(9), 4)


@pytest.mark.parametrize("token", [-1, 2**32, 1.5, "a"])
def test_a_token_that_is_no_u32_is_the_clients_mistake(token: int) -> None:
    tokens = [1] * 16 * 65 + [token] * 16

    with pytest.raises(RequestError, match=r"tokens 1024\.\.1055: token ids are integers"):
        sequence_hashes(tokens, 16)


@pytest.mark.parametrize("size", [1, 5, 6, 7])
def test_bytes_that_are_not_whole_tokens_are_the_clients_mistake(size: int) -> None:
    with pytest.raises(RequestError, match=f"{size} bytes, not a multiple of 4"):
        BlockHashes(bytes(size), 1)
    with pytest.raises(RequestError, match=f"{size} bytes, not a multiple of 4"):
        sequence_hashes(bytes(size), 1)


def test_numbers_that_only_look_like_tokens_in_memory_are_the_clients_mistake() -> None:
    with pytest.raises(RequestError, match=r"tokens 0\.\.1: token ids are integers"):
        pack_tokens(array("f", [1.0, 2.0]))


def test_a_buffer_of_u32s_is_viewed_and_not_copied() -> None:
    tokens = array("I", TOKENS)

    view = pack_tokens(tokens)

    assert isinstance(view, memoryview)
    assert view.obj is tokens
    assert view.format == "B"


def test_a_block_has_at_least_one_token() -> None:
    for tokens in ([1], bytes(8)):
        with pytest.raises(ValueError, match="block_size is 0"):
            BlockHashes(tokens, 0)
        with pytest.raises(ValueError, match="block_size is 0"):
            sequence_hashes(tokens, 0)


def test_namespaces_have_their_golden_roots() -> None:
    assert (namespace_root(), namespace_root(secret=0)) == (0, 0)
    assert namespace_root(tenant="acme") == 9451413943308186508
    assert namespace_root(lora="adapter") == 17188109903170495421
    assert namespace_root(cache_salt="s") == 10420795243158607444
    assert namespace_root(tenant="acme", lora="adapter", cache_salt="s") == 18106175705311558276
    assert namespace_root(secret=b"k" * 32) == 12589473033469194982
    assert namespace_root(tenant="acme", secret=b"k" * 32) == 116910593530196607
    assert namespace_root(secret=2**80 + 1) == 9750169816189138989
    assert namespace_root(secret=b"k" * 100) == 8407905620577317993


def test_a_number_is_a_secret_of_its_little_endian_bytes() -> None:
    assert namespace_root(secret=0x0102) == namespace_root(secret=b"\x02\x01")
    assert namespace_root(secret=0xFF) == namespace_root(secret=b"\xff")


def test_a_secret_is_a_key_as_it_stands_up_to_64_bytes() -> None:
    for length, hashed in ((64, False), (65, True)):
        secret = b"k" * length
        digest = hashlib.blake2b(secret).digest()
        assert (namespace_root(secret=secret) == namespace_root(secret=digest)) is hashed


def test_namespaces_cannot_be_confused_by_moving_letters() -> None:
    roots = {
        namespace_root(tenant="ab", lora="c"),
        namespace_root(tenant="a", lora="bc"),
        namespace_root(tenant="", lora="abc"),
        namespace_root(cache_salt="abc"),
        namespace_root(tenant="abc"),
        namespace_root(tenant="abc", secret=1),
        namespace_root(tenant="abc", secret=2),
    }

    assert len(roots) == 7
    assert not set(sequence_hashes(TOKENS, 16, root=min(roots))) & set(GOLDEN)


def test_a_secrets_mark_tells_secrets_apart_and_gives_none_away() -> None:
    assert (secret_mark(b""), secret_mark(b"k" * 32)) == (0, 3830200553)
    assert secret_mark(b"k" * 100) != secret_mark(b"k" * 99)
    assert secret_mark(b"k" * 32) != namespace_root(secret=b"k" * 32) & 0xFFFFFFFF


def test_an_image_changes_the_block_and_everything_behind_it() -> None:
    assert extend_hash(5, 7) == 17804004770663081370
    assert len({extend_hash(5, 7), extend_hash(5, 8), extend_hash(6, 7)}) == 3


def test_hashes_travel_as_little_endian_u64s() -> None:
    data = pack_hashes([1, 2**64 - 1])

    assert (data, unpack_hashes(data)) == (b"\x01" + bytes(7) + b"\xff" * 8, (1, 2**64 - 1))
    assert unpack_hashes(b"") == ()
    with pytest.raises(CodecError, match="9 bytes"):
        unpack_hashes(bytes(9))


def test_tokens_are_let_go_when_all_is_hashed() -> None:
    packed = bytearray(pack_tokens(range(40)))
    hashes = BlockHashes(packed, 4)

    hashes.upto(3)
    whole = list(hashes.upto(10))
    packed.clear()  # an error while a view of it is held

    assert (len(whole), list(hashes.upto(10))) == (10, whole)


def test_ids_that_are_not_kept_are_none_behind_a_block() -> None:
    assert BlockHashes.of([1, 2], 16).behind(1, 4) is None
