from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.buckets.turns import HALF_LIFE_S, MOST_AHEAD, Turns

EVEN = dict.fromkeys("abc", 1.0)


def begin(turns: Turns, homes: str, now: float, weights: dict[str, float] = EVEN) -> str:
    name = turns.choose(homes, weights, now)
    turns.take(name, now, in_turn=not homes)
    return name


def test_a_lead_is_forgotten_in_time() -> None:
    turns = Turns()
    for _ in range(9):
        begin(turns, "b", 0.0)

    assert (turns.choose("b", EVEN, 0.0), turns.choose("b", EVEN, HALF_LIFE_S)) == ("a", "b")
    assert turns.choose("b", EVEN, -1.0) == "a"


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
