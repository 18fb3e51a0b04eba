import pytest

from kvmesh.core.buckets.spill import BucketHeat, PrefixSpill

NAMES = ("a", "b", "c")


def heats(**hot: float) -> dict[str, BucketHeat]:
    return {name: BucketHeat(hot.get(name, 0.0), 0.1, workers=4) for name in NAMES}


def choose(spill: PrefixSpill, key: str, **hot: float) -> str:
    """Choose for a prompt of 10,000 tokens, 1,000 ms to prefill, as soon as all have reported."""
    for name in NAMES:
        spill.heard(name)
    return spill.choose(NAMES, key, 40_000, heats(**hot))


def home_of(key: str) -> str:
    return PrefixSpill().choose(NAMES, key, 0, heats())


def test_a_family_stays_at_home_while_home_is_not_hot() -> None:
    spill = PrefixSpill()

    homes = [choose(spill, str(number)) for number in range(300)]
    again = [choose(spill, str(number)) for number in range(300)]

    assert homes == again
    assert set(homes) == set(NAMES)


def test_a_hot_home_is_left_when_waiting_costs_more_than_the_prefill() -> None:
    home = home_of("k")
    spill = PrefixSpill()
    choose(spill, "k")

    assert choose(spill, "k", **{home: 900.0}) == home
    assert choose(spill, "k", **{home: 1200.0}) != home


def test_a_second_home_is_warm_from_then_on() -> None:
    home = home_of("k")
    spill = PrefixSpill()
    choose(spill, "k")
    second = choose(spill, "k", **{home: 1200.0})

    assert choose(spill, "k", **{home: 150.0}) == second
    assert choose(spill, "k") == home


def test_what_was_sent_counts_until_the_bucket_tells_of_itself() -> None:
    home = home_of("k")
    others = [str(number) for number in range(200) if home_of(str(number)) == home]
    spill = PrefixSpill()

    chosen = [spill.choose(NAMES, key, 40_000, heats()) for key in others]
    assert chosen[0] == home
    assert set(chosen) == set(NAMES)

    spill.heard(home)
    spill.heard("never sent to")
    assert spill.choose(NAMES, "k", 40_000, heats()) == home


def test_without_reports_home_is_home() -> None:
    spill = PrefixSpill()
    nothing = dict.fromkeys(NAMES, BucketHeat())

    assert {spill.choose(NAMES, "k", 40_000, nothing) for _ in range(50)} == {home_of("k")}


def test_the_family_longest_unused_is_forgotten() -> None:
    home = home_of("k")
    spill = PrefixSpill(max_families=1)
    choose(spill, "k")
    second = choose(spill, "k", **{home: 1200.0})
    (third,) = {*NAMES} - {home, second}

    assert choose(spill, "k", **{home: 500.0, second: 500.0}) == home
    choose(spill, "other")
    assert choose(spill, "k", **{home: 500.0, second: 500.0}) == third


@pytest.mark.parametrize("gone", NAMES)
def test_a_bucket_that_leaves_moves_only_its_own(gone: str) -> None:
    left = [name for name in NAMES if name != gone]

    for number in range(100):
        key = str(number)
        home = home_of(key)
        if home != gone:
            assert PrefixSpill().choose(left, key, 0, heats()) == home


SYSTEM = "You are helpful. " * 64
"""1,088 characters: deeper than three of the beginnings that are remembered."""


def conversation(number: int, turns: int = 1) -> str:
    return SYSTEM + "".join(f" {number}.{turn} " * 300 for turn in range(turns))


def test_who_shares_a_system_prompt_alone_leaves_a_hot_home_for_little() -> None:
    spill = PrefixSpill()
    home = choose(spill, conversation(1))

    assert choose(spill, conversation(1), **{home: 900.0}) == home
    assert choose(spill, conversation(2), **{home: 200.0}) != home


def test_once_all_hold_the_system_prompt_conversations_spread_and_each_stays() -> None:
    spill = PrefixSpill()
    for name in NAMES:
        choose(spill, conversation(0), **dict.fromkeys({*NAMES} - {name}, 5000.0))

    first = [choose(spill, conversation(number)) for number in range(1, 100)]
    second = [choose(spill, conversation(number, turns=3)) for number in range(1, 100)]

    assert min(first.count(name) for name in NAMES) > 20
    assert second == first


def test_a_burst_behind_one_system_prompt_counts_though_it_is_known() -> None:
    spill = PrefixSpill()
    choose(spill, conversation(0))

    chosen = [spill.choose(NAMES, conversation(n), 40_000, heats()) for n in range(1, 30)]

    assert set(chosen) == set(NAMES)


def test_a_prompt_without_a_text_has_a_home() -> None:
    assert PrefixSpill().choose(NAMES, "", 0, heats()) in NAMES
