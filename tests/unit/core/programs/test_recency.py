"""In which order contexts go, against an engine that keeps single tokens."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.programs.recency import MOST_ENTRIES, Held, Recency

AGENTS = "abc"
USES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(AGENTS), st.integers(0, 9)),
        st.tuples(st.just(""), st.integers(-1, 9)),
    ),
    max_size=30,
)


def play(uses: list[tuple[str, int]]) -> Recency:
    """Let contexts grow by so many tokens; "" writes what nobody uses again."""
    recency, contexts = Recency(), dict.fromkeys(AGENTS, 0)
    for agent, tokens in uses:
        if agent:
            contexts[agent] += tokens
            recency.use(agent, contexts[agent], tokens)
        else:
            recency.write(tokens)
    return recency


@given(uses=USES, capacity=st.integers(0, 80))
def test_what_is_newer_is_what_an_engine_used_since(
    uses: list[tuple[str, int]], capacity: int
) -> None:
    cache: OrderedDict[tuple[str, int], None] = OrderedDict()
    sizes, names = dict.fromkeys(AGENTS, 0), iter(range(1000))
    for agent, tokens in uses:
        for place in range(sizes[agent]) if agent else ():
            cache.move_to_end((agent, place))
        for _ in range(tokens):
            place = sizes[agent] if agent else next(names)
            cache[agent, place] = None
            if agent:
                sizes[agent] += 1
    order = list(reversed(cache))

    held = list(play(uses).held(capacity))

    assert all(one.newer_tokens < capacity for one in held)
    for one in held:
        if one.agent and one.tokens:
            first = min(place for place, (agent, _) in enumerate(order) if agent == one.agent)
            assert (one.newer_tokens, one.tokens) == (first, sizes[one.agent])
    shown = {one.agent for one in held if one.tokens}
    for agent in AGENTS:
        places = [place for place, (name, _) in enumerate(order) if name == agent]
        assert (agent in shown) == bool(places and places[0] < capacity)


def test_what_an_agent_went_back_from_is_nobodys_and_goes_before_the_rest() -> None:
    recency = Recency()
    recency.use("a", 1000, 1000)
    recency.use("a", 700, 200)

    assert list(recency.held(10_000)) == [Held("a", 700, 0), Held("", 500, 700)]


def test_the_oldest_of_too_many_is_forgotten() -> None:
    recency = Recency()
    for number in range(MOST_ENTRIES + 3):
        recency.use(f"{number}", 1, 1)
    recency.write(1)

    held = list(recency.held(1 << 40))
    assert (len(held), held[-1].agent) == (MOST_ENTRIES, "4")
