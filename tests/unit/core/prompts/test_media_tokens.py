from array import array
from random import Random
from typing import Any

import msgspec
import pytest

from kvmesh.core.blocks.events import Stored
from kvmesh.core.blocks.hashing import namespace_root, sequence_hashes, unpack_hashes
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.prompts import media_tokens
from kvmesh.core.prompts.media_tokens import MediaTokens, Span, Told, spanned_hashes

SIZE = 8
PAD = 3


def packed(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def known(**runs: int) -> MediaTokens:
    """Return what knows media of so many tokens each."""
    made = MediaTokens()
    for name, count in runs.items():
        assert made.wants(name)
        made.learn(name, [1, PAD, 2], Told([1, *[PAD] * count, 2]))
    return made


def engine_hashes(ids: list[int], spans: list[Span], salt: str = "") -> list[int]:
    """Return what an index is told when vLLM stores all full blocks of a prompt."""
    blocks = len(ids) // SIZE
    keys: list[list[Any] | None] = []
    for block in range(blocks):
        first, last = block * SIZE, (block + 1) * SIZE
        found: list[Any] = [
            [one.name, one.start - first]
            for one in spans
            if one.start < last and one.start + one.length > first
        ]
        found += [salt] if salt and not block else []
        keys.append(found or None)
    event = {
        "type": "BlockStored",
        "block_hashes": [9_000 + block for block in range(blocks)],
        "parent_block_hash": None,
        "token_ids": ids[: blocks * SIZE],
        "block_size": SIZE,
        "lora_id": None,
        "extra_keys": keys,
    }
    cache = EngineCache(SIZE)
    (told,) = cache.take(msgspec.msgpack.encode([0.0, [event]]))
    assert isinstance(told, Stored)
    return list(unpack_hashes(told.hashes))


def test_what_a_template_prints_once_is_what_the_engine_makes_of_it() -> None:
    tokens = known(a=4, b=1_000)

    made = tokens.expand(packed(1, 7, PAD, 8, PAD, 9), ["a", "b"])

    assert made is not None
    assert made[0] == packed(1, 7, *[PAD] * 4, 8, *[PAD] * 1_000, 9)
    assert made[1] == [Span("a", 2, 4), Span("b", 7, 1_000)]


def test_marks_around_it_are_part_of_it() -> None:
    """As Gemma 3 has it: blank lines, the mark of its begin, tokens, the mark of its end."""
    tokens = MediaTokens()
    tokens.learn("a", [1, 5, 2], Told([1, 10, 5, *[6] * 4, 7, 10, 2]))

    made = tokens.expand(packed(1, 8, 5, 2), ["a"])

    assert made == (packed(1, 8, 10, 5, *[6] * 4, 7, 10, 2), [Span("a", 2, 8)])


@pytest.mark.parametrize(
    ("printed", "engine"),
    [
        ([1, PAD, 2], [1, PAD, 2]),
        ([1, PAD, 2], [1, 2]),
        ([1, 2], [1, PAD, PAD, 2]),
        ([1, PAD, 4, 2], [1, 9, 9, 9, 2]),
        ([1, PAD, 2], []),
        ([], []),
    ],
)
def test_what_is_not_one_token_for_many_cannot_be_followed(
    printed: list[int], engine: list[int]
) -> None:
    tokens = MediaTokens()
    tokens.learn("a", printed, Told(engine))

    assert not tokens.knows("a")
    assert tokens.gave_up("a")
    assert not tokens.wants("a")
    assert tokens.expand(packed(1, PAD), ["a"]) is None


def test_ids_with_more_or_fewer_marks_than_media_are_not_expanded() -> None:
    tokens = known(a=4)

    assert tokens.expand(packed(1, PAD, 2), ["a", "a"]) is None
    assert tokens.expand(packed(1, PAD, PAD), ["a"]) is None
    assert tokens.expand(packed(1, PAD, PAD), ["a", "unknown"]) is None


def test_a_name_is_asked_for_once_at_a_time_and_a_few_times_in_vain() -> None:
    tokens = MediaTokens()

    for _ in range(media_tokens.MOST_TRIES):
        assert tokens.wants("a")
        assert not tokens.wants("a")
        tokens.learn("a", (), None)

    assert not tokens.wants("a")


def test_what_nobody_was_asked_about_may_be_asked_again_and_again() -> None:
    tokens = MediaTokens()

    for _ in range(2 * media_tokens.MOST_TRIES):
        assert tokens.wants("a")
        tokens.put_off("a")

    assert not tokens.gave_up("a")


def test_the_name_in_blocks_is_the_engines_own_where_it_told_one() -> None:
    tokens = MediaTokens()
    tokens.learn("a", [1, PAD, 2], Told([1, PAD, PAD, 2], "own"))

    made = tokens.expand(packed(1, PAD, PAD, 2), ["a", "a"])

    assert made is not None
    assert made[1] == [Span("own", 1, 2), Span("own", 3, 2)]


def test_of_how_many_names_it_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_tokens, "MOST_ASKED", 2)
    tokens = MediaTokens()

    for name in "abc":
        assert tokens.wants(name)
        tokens.learn(name, (), None)

    assert list(tokens._tries) == ["b", "c"]


@pytest.mark.parametrize("seed", range(60))
def test_blocks_with_media_are_those_that_the_engine_tells_of(seed: int) -> None:
    rng = Random(seed)
    ids: list[int] = []
    spans: list[Span] = []
    for number in range(rng.randrange(4)):
        ids += [rng.randrange(10, 99) for _ in range(rng.randrange(30))]
        length = rng.choice([1, 3, 8, 16, 41])
        spans.append(Span(f"m{number % 2}", len(ids), length))
        ids += [PAD] * length
    ids += [rng.randrange(10, 99) for _ in range(rng.randrange(8, 40))]
    salt = rng.choice(["", "tenant"])
    root = namespace_root(cache_salt=salt)

    made = spanned_hashes(spans, packed(*ids), SIZE, root)

    assert list(made.upto(1 << 20)) == engine_hashes(ids, spans, salt)
    assert made.blocks == len(ids) // SIZE
    if not spans:
        assert list(made.upto(1 << 20)) == sequence_hashes(ids, SIZE, root)


def test_another_picture_with_the_same_text_shares_the_text_in_front_alone() -> None:
    ids = [*range(20, 36), *[PAD] * 16, *range(40, 56)]
    one, other = (
        list(spanned_hashes([Span(name, 16, 16)], packed(*ids), SIZE, 0).upto(99)) for name in "ab"
    )

    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])
