"""Which prompts are kept, and how often their blocks are expected to be asked for."""

import pytest

from kvmesh.core.blocks.hashing import BlockHashes, as_key
from kvmesh.core.warming.kept_prompts import FRESH_S, KeptOptions, KeptPrompts, Sent

SIZE = 16


def prompt(*parts: tuple[int, int]) -> BlockHashes:
    """Return hashes that begin alike where their parts do: (which, how many blocks)."""
    return BlockHashes.of(
        [which * 10_000 + n for which, count in parts for n in range(count)], SIZE
    )


def kept_names(kept: KeptPrompts[str]) -> list[str]:
    return [one.what for one in kept.prompts()]


def test_a_prompt_that_goes_on_from_another_takes_its_place() -> None:
    kept = KeptPrompts[str]()

    kept.add(prompt((1, 20)), Sent("first", 100), SIZE, 0.0)
    kept.add(prompt((1, 20), (2, 12)), Sent("second", 200), SIZE, 10.0)

    (one,) = kept.prompts()
    assert (one.what, one.turns, one.used_s, kept.size, len(kept)) == ("second", 2, 10.0, 200, 1)


def test_a_prompt_far_longer_is_another_one() -> None:
    kept = KeptPrompts[str]()

    kept.add(prompt((1, 20)), Sent("system", 1), SIZE, 0.0)
    kept.add(prompt((1, 20), (2, 60)), Sent("long", 1), SIZE, 10.0)

    assert kept_names(kept) == ["system", "long"]


def test_of_short_questions_behind_one_beginning_there_is_one() -> None:
    kept = KeptPrompts[str]()

    for number in range(5):
        kept.add(prompt((1, 32), (number + 2, 3)), Sent(f"q{number}", 1), SIZE, float(number))

    assert kept_names(kept) == ["q4"]


@pytest.mark.parametrize(("blocks", "size"), [(15, 10), (0, 1), (20, 1000)])
def test_short_prompts_and_large_ones_are_not_kept(blocks: int, size: int) -> None:
    kept = KeptPrompts[str](KeptOptions(most_bytes=4000))

    kept.add(prompt((1, blocks)), Sent("a", size), SIZE, 0.0)

    assert not len(kept)


def test_a_prompt_without_a_graded_block_is_not_kept() -> None:
    kept = KeptPrompts[str](KeptOptions(least_tokens=0))

    kept.add(prompt((1, 3)), Sent("a", 1), SIZE, 0.0)

    assert not len(kept)


def test_the_longest_unused_goes_first() -> None:
    kept = KeptPrompts[str](KeptOptions(most=2, most_bytes=1000))
    for number in range(3):
        kept.add(prompt((number, 20)), Sent(f"p{number}", 100), SIZE, float(number))
    assert kept_names(kept) == ["p1", "p2"]

    for number in range(3, 13):
        kept.add(prompt((number, 20)), Sent(f"p{number}", 124), SIZE, float(number))

    assert kept_names(kept) == ["p11", "p12"]
    assert kept.size == 248


def test_blocks_are_kept_no_longer_than_their_prompts() -> None:
    kept = KeptPrompts[str](KeptOptions(most=1))
    kept.add(prompt((1, 20)), Sent("a", 1), SIZE, 0.0)
    kept.add(prompt((2, 20)), Sent("b", 1), SIZE, 1.0)

    assert set(kept.rates(2.0)) == {as_key(20_000 + n) for n in (3, 7, 11, 15, 19)}


def test_a_shared_beginning_is_expected_as_often_as_new_prompts_come_by_it() -> None:
    kept = KeptPrompts[str]()
    for number in range(301):
        kept.add(prompt((1, 32), (number + 2, 40)), Sent("q", 1), SIZE, float(number))

    rates = kept.rates(300.0)

    shared, own = rates[as_key(10_031)], rates[as_key(3_020_015)]
    assert shared == pytest.approx(0.63, rel=0.1)  # 1/s, of which 300 s count for 1 - 1/e
    assert own < 0.01
    assert kept.rates(300.0 + 3 * FRESH_S)[as_key(10_031)] < 0.2


def test_a_shorter_prompt_on_the_way_of_another_is_kept_beside_it() -> None:
    kept = KeptPrompts[str](KeptOptions(least_tokens=0))
    kept.add(prompt((1, 40)), Sent("long", 1), SIZE, 0.0)

    kept.add(prompt((1, 8)), Sent("short", 1), SIZE, 1.0)
    kept.add(prompt((2, 4)), Sent("other", 1), SIZE, 2.0)

    assert kept_names(kept) == ["long", "short", "other"]
    assert kept.rates(2.0)[as_key(10_007)] > 1.0 / FRESH_S


def test_what_another_prompt_shares_stays_when_one_goes() -> None:
    kept = KeptPrompts[str](KeptOptions(most=1))
    kept.add(prompt((1, 32), (2, 64)), Sent("a", 1), SIZE, 0.0)
    kept.add(prompt((1, 32), (3, 64)), Sent("b", 1), SIZE, 1.0)

    rates = kept.rates(1.0)

    assert as_key(10_031) in rates
    assert as_key(20_063) not in rates


def test_the_tenant_that_keeps_most_gives_way() -> None:
    kept = KeptPrompts[str](KeptOptions(most=4, most_bytes=1 << 20))
    kept.add(prompt((0, 20)), Sent("old", 1, "small"), SIZE, 0.0)
    for number in range(1, 9):
        kept.add(prompt((number, 20)), Sent(f"j{number}", 1, "junk"), SIZE, float(number))

    assert kept_names(kept) == ["old", "j6", "j7", "j8"]


def test_the_tenant_of_most_bytes_gives_way() -> None:
    kept = KeptPrompts[str](KeptOptions(most_bytes=800))
    for number in range(7):
        kept.add(prompt((number, 20)), Sent(f"s{number}", 10, "small"), SIZE, float(number))
    for number in range(7, 20):
        kept.add(prompt((number, 20)), Sent(f"j{number}", 100, "junk"), SIZE, float(number))

    assert kept_names(kept)[:7] == [f"s{number}" for number in range(7)]
    assert kept_names(kept)[7:] == [f"j{number}" for number in range(13, 20)]
    assert kept.size == 770


def test_of_tenants_with_equally_many_the_one_unheard_for_longest_gives_way() -> None:
    kept = KeptPrompts[str](KeptOptions(most=2))
    for number, tenant in enumerate(("a", "b", "c")):
        kept.add(prompt((number, 20)), Sent(tenant, 1, tenant), SIZE, float(number))

    assert kept_names(kept) == ["b", "c"]


def test_a_prompt_that_two_tenants_send_is_the_later_ones() -> None:
    kept = KeptPrompts[str]()
    for number, tenant in enumerate(("a", "b")):
        kept.add(prompt((1, 20)), Sent("same", 1, tenant), SIZE, float(number))

    assert [one.sent.tenant for one in kept.prompts()] == ["b"]
