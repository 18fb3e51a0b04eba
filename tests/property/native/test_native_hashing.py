"""The compiled hash chain against the xxhash wheel, and against the naive chain."""

import random
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvmesh._native import chain, chain_tokens, pack_chain
from kvmesh._native import pack_u64s as quick_pack
from kvmesh.core.blocks.hash_chain import chain_tokens as careful
from kvmesh.core.blocks.hash_chain import pack_u64s
from kvmesh.errors import RequestError
from tests.reference.blocks import hash_chain as naive

U64 = 2**64 - 1


class Index:
    """Counts as an integer to those who ask for one."""

    def __index__(self) -> int:
        return 7


seeds = st.sampled_from([0, 1, U64, -1, 2**70 + 5]) | st.integers(0, U64)
odd = st.sampled_from([-1, 2**32, 2**64, 2**100, True, 1.5, None, "a"])
odd_hashes = st.sampled_from([-1, 2**64, 2**100, True, 1.5, None, "a"]) | st.builds(Index)
tokens = st.integers(0, 2**32 - 1) | st.sampled_from([0, 2**30 - 1, 2**30, 2**31, 2**32 - 1])


def test_every_length_hashes_as_the_reference_does() -> None:
    rng = random.Random(1)
    for size in [*range(1, 2049), 3000, 4096, 10_001, 100_000]:
        data = rng.randbytes(size + 3)
        for seed in (0, U64, rng.getrandbits(64), rng.getrandbits(64)):
            start = seed & 3
            expected = xxh3_64_intdigest(data[start : start + size], seed)
            assert chain(seed, data, start, size, 1) == [expected], (size, seed)


@given(st.lists(st.integers(0, U64) | st.sampled_from([0, U64, 2**60, 2**60 - 1]) | odd_hashes))
def test_hashes_are_packed_alike(hashes: list[Any]) -> None:
    try:
        expected = array("Q", hashes)
    except (OverflowError, TypeError) as error:
        with pytest.raises(type(error)):
            array("Q", pack_u64s(hashes))
        assert quick_pack(hashes) is None
        return

    assert array("Q", pack_u64s(hashes)) == expected
    assert array("Q", pack_u64s(tuple(hashes))) == expected
    if all(type(one) is int for one in hashes):
        assert quick_pack(hashes) == expected.tobytes()
    assert quick_pack(array("Q", expected)) is None


@given(seeds, st.binary(max_size=600), st.integers(0, 20), st.integers(1, 80))
def test_a_buffer_hashes_alike(seed: int, data: bytes, start: int, width: int) -> None:
    count = max(0, len(data) - start) // width
    start = min(start, len(data))

    expected = naive.chain(seed, data, start, width, count)

    assert chain(seed, data, start, width, count) == expected
    assert chain(seed, memoryview(bytearray(data)), start, width, count) == expected


@given(seeds, st.lists(tokens, max_size=70), st.integers(0, 3), st.integers(1, 9))
def test_tokens_hash_alike(seed: int, prompt: list[int], first: int, size: int) -> None:
    count = max(0, len(prompt) - first) // size

    expected = naive.chain_tokens(seed, prompt, first, size, count)

    assert careful(seed, prompt, first, size, count) == expected
    assert careful(seed, tuple(prompt), first, size, count) == expected
    if first <= len(prompt):
        assert chain_tokens(seed, prompt, first, size, count) == expected


texts = st.text(st.characters(max_codepoint=255)) | st.text() | st.text("aé\u0105\ud800\U0010ffff")


@given(seeds, texts, st.integers(0, 3), st.integers(1, 9))
def test_code_points_hash_like_the_tokens_they_are(
    seed: int, text: str, first: int, size: int
) -> None:
    first = min(first, len(text))
    count = (len(text) - first) // size
    packed = text.encode("utf-32-le", "surrogatepass")

    expected = naive.pack_chain(seed, text, first, size, count)

    assert naive.pack_chain(seed, packed, first, size, count) == expected
    assert pack_chain(seed, text, first, size, count) == expected
    assert pack_chain(seed, packed, first, size, count) == expected
    assert pack_chain(seed, memoryview(packed), first, size, count) == expected
    assert chain(seed, packed, 4 * first, 4 * size, count) == [*array("Q", expected)]


@pytest.mark.parametrize("text", ["a" * 5000, "\u0105" * 5000, "\U0010ffff" * 5000])
def test_a_block_of_many_code_points_hashes_alike(text: str) -> None:
    assert pack_chain(7, text, 1, 2000, 2) == naive.pack_chain(7, text, 1, 2000, 2)


@given(st.lists(tokens | odd, min_size=1, max_size=200), st.integers(1, 2))
def test_what_is_no_token_is_refused_alike(prompt: list[int], size: int) -> None:
    answers: list[object] = []
    for hashes in (careful, naive.chain_tokens):
        try:
            answers.append(hashes(1, prompt, 0, size, len(prompt) // size))
        except RequestError as error:
            answers.append(str(error))

    assert answers[0] == answers[1]


def test_a_block_of_many_tokens_hashes_alike() -> None:
    prompt = list(range(5000))

    assert chain_tokens(7, prompt, 1, 2000, 2) == naive.chain_tokens(7, prompt, 1, 2000, 2)


@pytest.mark.parametrize(
    ("start", "width", "count"),
    [(0, 4, 3), (9, 1, 1), (-1, 1, 1), (0, 0, 1), (0, -4, 1), (0, 4, -1), (0, 2**62, 2), (8, 8, 1)],
)
def test_blocks_outside_the_buffer_are_refused(start: int, width: int, count: int) -> None:
    with pytest.raises(ValueError, match="do not fit in 8"):
        chain(0, bytes(8), start, width, count)


@pytest.mark.parametrize(
    ("first", "size", "count"),
    [
        (0, 1, 9),
        (9, 1, 0),
        (-1, 1, 1),
        (0, 0, 1),
        (0, -1, 1),
        (0, 1, -1),
        (0, 2**61, 2),
        (8, 1, 1),
        (0, 3, 3),
    ],
)
def test_tokens_that_are_not_there_are_left_to_others(first: int, size: int, count: int) -> None:
    for given_tokens in (bytes(35), "12345678"):
        with pytest.raises(ValueError, match="do not fit in 8"):
            pack_chain(0, given_tokens, first, size, count)
    assert chain_tokens(0, [1] * 8, first, size, count) is None


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (0, b""),
        ("a", b"", 0, 1, 0),
        (0, b"", 2**70, 1, 0),
        (0, b"", 0, 1.5, 0),
        (0, 1, 0, 1, 0),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        chain(*arguments)  # type: ignore[arg-type]  # that is the point
    with pytest.raises((TypeError, OverflowError)):
        pack_chain(*arguments)  # type: ignore[arg-type]  # that is the point
    with pytest.raises((TypeError, OverflowError)):
        chain_tokens(*(*arguments[:4], "x"))  # type: ignore[arg-type]
