from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.buckets.homes import MOST_HOMES, HomeOptions, Homes

TTL_S = 100.0
KEY = "00000000000000ff"


def test_a_home_is_known_until_it_is_unused_for_too_long() -> None:
    homes = Homes(HomeOptions(ttl_s=TTL_S))
    homes.note(1, "a", 0.0)

    assert homes.find(1, TTL_S) == ("a",)
    homes.note(1, "a", TTL_S)
    assert (homes.find(1, 2 * TTL_S), homes.find(1, 2 * TTL_S + 1)) == (("a",), ())
    assert (len(homes), homes.find(2, 0.0)) == (0, ())


def test_the_newest_home_comes_last_and_old_ones_are_forgotten() -> None:
    homes = Homes(HomeOptions())
    for number in range(2 * MOST_HOMES):
        homes.note(1, f"b{number}", 0.0)
    homes.note(1, f"b{MOST_HOMES}", 0.0)

    found = homes.find(1, 0.0)

    assert (len(found), found[-2:]) == (MOST_HOMES, (f"b{2 * MOST_HOMES - 1}", f"b{MOST_HOMES}"))
    assert homes.buckets() == set(found)


def test_news_are_new_homes_and_what_was_told_long_ago() -> None:
    homes = Homes(HomeOptions(ttl_s=TTL_S))

    def updates() -> dict[str, str]:
        reported, homes.updates = homes.updates, {}
        return reported

    homes.note(255, "a", 0.0)
    assert updates() == {KEY: "a"}
    homes.note(255, "a", 0.49 * TTL_S)
    assert updates() == {}
    homes.note(255, "b", 0.49 * TTL_S)
    assert updates() == {KEY: "a,b"}
    homes.note(255, "a", 0.5 * TTL_S)
    assert updates() == {}  # which was used last is each meta-router's own
    homes.note(255, "a", 0.5 * TTL_S, ended=True)
    assert updates() == {KEY: "+b,a"}
    homes.note(255, "a", TTL_S)
    assert updates() == {KEY: "+b,a"}
    homes.note(7, "a", 0.0, reported=False)
    assert updates() == {}
    homes.note(7, "a", 0.0)
    assert updates() == {"0000000000000007": "a"}


def test_who_tells_the_news_is_called_at_each() -> None:
    homes, called = Homes(HomeOptions(ttl_s=TTL_S)), list[int]()
    homes.on_news = lambda: called.append(len(homes.updates))

    homes.note(255, "a", 0.0)
    homes.note(255, "a", 1.0)
    homes.note(7, "a", 1.0)

    assert called == [1, 2]


def test_a_bound_session_has_one_home_and_is_told_again_in_time() -> None:
    homes = Homes(HomeOptions(ttl_s=TTL_S))
    homes.bind(255, "a", 0.0)
    homes.bind(255, "b", 1.0)

    assert (homes.find(255, 1.0), homes.updates) == (("b",), {KEY: "+b"})
    homes.updates.clear()
    homes.bind(255, "b", 50.0)
    assert homes.updates == {}
    homes.bind(255, "b", 51.0)
    assert homes.updates == {KEY: "+b"}


def test_what_others_tell_counts_unless_ones_own_is_still_to_be_told() -> None:
    homes = Homes(HomeOptions())
    homes.note(255, "a", 0.0)
    homes.learn(KEY, "b", 0.0)
    assert homes.find(255, 0.0) == ("a",)

    homes.updates.clear()
    homes.count_passed(255)
    homes.learn(KEY, "+b,c", 0.0)

    assert homes.find(255, 0.0) == homes.find_end(255, 0.0) == ("b", "c")
    assert homes.passed(255) == 1
    homes.note(255, "c", 0.0)
    assert homes.updates == {}  # it was told


@given(st.text(max_size=20), st.text(max_size=20))
def test_garbage_in_the_table_hurts_nobody(key: str, value: str) -> None:
    homes = Homes(HomeOptions())

    homes.learn(key, value, 0.0)
    homes.learn(KEY, value, 0.0)
    homes.learn("not hexadecimal!", "a", 0.0)
    homes.learn("00 00 00 00 00 0", "a", 0.0)
    homes.learn("00000000 0000000", "a", 0.0)
    homes.learn("000000  00000000", "a", 0.0)
    homes.learn(KEY, "a" * 2000, 0.0)

    assert len(homes) <= 2
    assert all(name for name in homes.buckets())


def test_an_end_is_what_a_request_ended_with_and_passing_is_counted_where_it_is_known() -> None:
    homes = Homes(HomeOptions())
    homes.note(1, "a", 0.0)
    homes.count_passed(1)
    homes.count_passed(2)

    assert (homes.find_end(1, 0.0), homes.passed(1), homes.passed(2)) == ((), 1, 0)
    homes.note(1, "a", 0.0, ended=True)
    homes.note(1, "a", 0.0)
    assert homes.find_end(1, 0.0) == ("a",)
