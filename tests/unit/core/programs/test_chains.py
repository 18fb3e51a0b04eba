from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.programs.chains import ChainOptions, Chains

SIZE = 16


def prompt(*parts: tuple[int, int]) -> BlockHashes:
    """Return the hashes of a prompt: of each part so many blocks of its own content."""
    value, values = 1, list[int]()
    for content, blocks in parts:
        for _ in range(blocks):
            value = (value * 6364136223846793005 + content + 1442695040888963407) % 2**64
            values.append(value)
    return BlockHashes.of(values, SIZE)


def chains(**options: float) -> Chains:
    return Chains(ChainOptions(**({"least_tokens": 4 * SIZE} | options)), SIZE)  # type: ignore[arg-type]  # of its fields


def test_agents_behind_one_system_prompt_are_told_apart() -> None:
    known, keys = chains(), list[str | None]()
    for turn in range(4):
        keys = [known.learn(prompt((0, 300), (one, 5 + 9 * turn)), "", 0.0) for one in range(1, 6)]

    assert (len(set(keys)), len(known)) == (5, 5)


def test_the_same_prompt_again_is_its_agents_only_if_it_is_one() -> None:
    known = chains()
    known.learn(prompt((0, 10)), "", 0.0)

    assert known.find(prompt((0, 10)), "", 0.0) is None
    assert known.learn(prompt((0, 10)), "", 0.0) is None
    key = known.learn(prompt((0, 12)), "", 0.0)
    assert known.find(prompt((0, 12)), "", 0.0) == key
    assert (known.learn(prompt((0, 12)), "", 0.0), len(known)) == (key, 1)


def test_agents_that_began_with_the_same_prompt_are_two() -> None:
    known = chains()
    keys = list[str | None]()
    for one in range(70):
        known.learn(prompt((0, 10)), "", 0.0)
        keys.append(known.learn(prompt((0, 10), (one, 5)), "", 0.0))

    assert (len(set(keys[:64])), keys[64:]) == (64, [None] * 6)
    assert known.find(prompt((0, 10), (0, 9)), "", 0.0) == keys[0]


def test_an_agent_that_forks_is_found_behind_its_fork() -> None:
    known = chains()
    known.learn(prompt((0, 100)), "", 0.0)
    key = known.learn(prompt((0, 200)), "", 0.0)

    first = known.learn(prompt((0, 200), (1, 40)), "", 0.0)
    fork = known.learn(prompt((0, 200), (2, 40)), "", 0.0)

    assert first == key
    assert fork is None
    assert known.find(prompt((0, 200), (1, 50)), "", 0.0) == key
    assert known.find(prompt((0, 200), (2, 50)), "", 0.0) not in (None, key)


def test_tenants_do_not_follow_each_others_prompts() -> None:
    known = chains()
    known.learn(prompt((0, 10)), "a", 0.0)

    assert known.find(prompt((0, 11)), "b", 0.0) is None
    assert known.learn(prompt((0, 11)), "b", 0.0) is None
    assert known.learn(prompt((0, 12)), "a", 0.0) != known.learn(prompt((0, 12)), "b", 0.0)


def test_a_tenant_that_has_too_many_loses_its_own() -> None:
    known = chains(max_per_tenant=3)
    known.learn(prompt((0, 10)), "quiet", 0.0)

    for one in range(50):
        known.learn(prompt((one, 10)), "loud", 1.0)

    assert len(known) == 4
    assert known.find(prompt((0, 11)), "quiet", 1.0) is not None
    assert known.find(prompt((46, 11)), "loud", 1.0) is None
    assert known.find(prompt((49, 11)), "loud", 1.0) is not None


def test_the_longest_unused_gives_its_place() -> None:
    known = chains(max_chains=2)
    known.learn(prompt((0, 10)), "a", 0.0)
    known.learn(prompt((1, 10)), "b", 0.0)
    known.learn(prompt((0, 11)), "a", 1.0)

    known.learn(prompt((2, 10)), "c", 2.0)

    found = [known.find(prompt((one, 20)), name, 2.0) for one, name in enumerate("abc")]
    assert [one is not None for one in found] == [True, False, True]


def test_what_was_not_used_for_long_is_begun_anew() -> None:
    known = chains(ttl_s=60.0)
    known.learn(prompt((0, 10)), "", 0.0)

    assert known.find(prompt((0, 11)), "", 61.0) is None
    assert known.learn(prompt((0, 10)), "", 61.0) is None
    assert known.find(prompt((0, 11)), "", 61.0) is not None


class Naive:
    """Each chain's last prompt, looked through one by one."""

    def __init__(self) -> None:
        self.tips: list[tuple[list[int], int]] = []

    def learn(self, values: list[int]) -> int | None:
        """Return the number of the chain that goes on."""
        ends = [one for one in self.tips if values[: len(one[0])] == one[0]]
        if not ends:
            self.tips.append((values, len(self.tips)))
            return None
        last = max(ends, key=lambda one: len(one[0]))
        self.tips[self.tips.index(last)] = (values, last[1])
        return last[1]


@given(
    st.integers(4, 60),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=40),
)
def test_chains_that_do_not_fork_are_followed_as_by_looking_through_all(
    shared: int, steps: list[tuple[int, int]]
) -> None:
    known, naive = chains(), Naive()
    numbers = dict[str, int | None]()
    length = [1] * 5
    seen = set[tuple[int, int]]()

    for at, (who, more) in enumerate(steps):
        length[who] += more
        one = prompt((99, shared), (who, length[who]))
        reported = known.learn(one, "", float(at))
        number = naive.learn(list(one.upto(one.blocks)))

        assert (reported is None) == (number is None)
        if reported is not None:
            assert numbers.setdefault(reported, number) == number
        seen.add((who, length[who]))
    assert len(known) == len({who for who, _ in seen})


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=5),
        max_size=40,
    ),
    st.integers(1, 6),
)
@example([[(0, length)] for length in (1, 1, 3, 1, 2, 1, 1, 1, 2)], 2)
def test_whatever_is_found_is_a_prefix_and_nothing_is_left_behind(
    prompts: list[list[tuple[int, int]]], room: int
) -> None:
    known = chains(max_chains=room, max_per_tenant=max(1, room - 1), least_tokens=1)
    tips = dict[str, list[int]]()

    for at, parts in enumerate(prompts):
        one, tenant = prompt(*parts), "ab"[at % 2]
        values = list(one.upto(one.blocks))
        predicted = known.find(one, tenant, float(at))
        reported = known.learn(one, tenant, float(at))
        assert reported == predicted
        if reported is not None:
            if reported in tips:
                assert values[: len(tips[reported])] == tips[reported]
            tips[reported] = values
        # One that was forgotten may begin again, by the same prompt and so with the same key.
        tips = {key: tip for key, tip in tips.items() if key in known._chains}
        assert len(known) <= room

    for tenant, held in known._tenants.items():
        own = [one for one in known._chains.values() if one.tenant == tenant]
        used = [value for one in own for value in one.marks]
        assert {value: mark.users for value, mark in held.marks.items()} == {
            value: used.count(value) for value in used
        }


def test_short_prompts_are_nobodys() -> None:
    known = chains()

    assert known.learn(prompt((0, 3)), "", 0.0) is None
    assert known.find(prompt((0, 3)), "", 0.0) is None
    assert known.learn(prompt(), "", 0.0) is None
    assert len(known) == 0


def test_shorter_prompts_are_looked_at_where_engines_keep_few_contexts() -> None:
    known = chains(slot_tokens=2 * SIZE)
    known.learn(prompt((0, 2)), "", 0.0)
    assert len(known) == 0

    known.look_at(slots=True)
    known.learn(prompt((0, 2)), "", 0.0)
    assert known.learn(prompt((0, 3)), "", 0.0) is not None

    known.look_at(slots=False)
    assert known.find(prompt((0, 3)), "", 0.0) is None
