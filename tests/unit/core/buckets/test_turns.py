from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.buckets.turns import HALF_LIFE_S, MOST_AHEAD, Turns

EVEN = dict.fromkeys("abc", 1.0)


def begin(turns: Turns, homes: str, now: float, weights: dict[str, float] = EVEN) -> str:
    name = turns.choose(homes, weights, now)
    turns.take(name, now, in_turn=not homes)
    return name


def test_a_home_gets_a_burst_and_then_others_become_homes() -> None:
    turns = Turns()
    homes = {"b"}
    found: list[str] = []
    for _ in range(90):
        found.append(begin(turns, "".join(sorted(homes)), 0.0))
        homes.add(found[-1])

    assert found[: int(MOST_AHEAD) + 1] == ["b"] * 9
    assert Counter(found) == {"a": 30, "b": 30, "c": 30}


def test_a_lead_is_forgotten_in_time() -> None:
    turns = Turns()
    for _ in range(9):
        begin(turns, "b", 0.0)

    assert turns.choose("b", EVEN, 0.0) == "a"
    assert turns.choose("b", EVEN, HALF_LIFE_S) == "b"
    assert turns.choose("b", EVEN, -1.0) == "a"


def test_a_bucket_of_twice_the_size_may_be_ahead_by_its_size() -> None:
    turns, sizes = Turns(), {"a": 2.0, "b": 4.0}
    for _ in range(60):
        begin(turns, "ab", 0.0, sizes)

    found = Counter(begin(turns, "ab", 0.0, sizes) for _ in range(60))

    assert found == {"a": 20, "b": 40}


@given(
    st.lists(
        st.tuples(st.sampled_from(("", "a", "b", "c", "ab", "ac", "bc", "abc")), st.floats(0, 30)),
        max_size=200,
    )
)
def test_no_bucket_is_ever_ahead_by_more_than_the_bound(begun: list[tuple[str, float]]) -> None:
    turns, now = Turns(), 0.0
    counts = dict.fromkeys("abc", 0.0)
    for homes, passed in begun:
        now += passed
        for name in counts:
            counts[name] *= 0.5 ** (passed / HALF_LIFE_S)
        counts[begin(turns, homes, now)] += 1.0

        assert max(counts.values()) - min(counts.values()) <= MOST_AHEAD + 2.0 + 1e-6


@given(st.lists(st.sampled_from(("", "a", "b", "c", "abc")), min_size=30, max_size=300))
def test_in_the_long_run_buckets_have_equal_turns(homes: list[str]) -> None:
    turns = Turns()

    found = Counter({"a": 0, "b": 0, "c": 0})
    found.update(begin(turns, one, 0.0) for one in homes)

    assert max(found.values()) - min(found.values()) <= MOST_AHEAD + 2
