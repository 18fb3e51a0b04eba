from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.buckets.beginnings import chat_keys
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.buckets.placing import BucketPolicy, Placing, RouterReplica, rendezvous
from kvmesh.core.buckets.rules import BucketRequest

NAMES = ("a", "b", "c")
POLICIES: tuple[BucketPolicy, ...] = (
    "round-robin",
    "prefix-hash",
    "prefix-spill",
    "least-loaded",
)
SYSTEM = ("system", "You are helpful.")
ALONE = HomeOptions(shared=False)


def serving(
    *names: str, workers: int = 0, load: Mapping[str, int] | None = None
) -> dict[str, list[RouterReplica]]:
    return {
        name: [
            RouterReplica(
                name,
                name,
                "",
                workers=frozenset(map(str, range(workers))),
                active_requests=(load or {}).get(name, 0),
            )
        ]
        for name in names
    }


ALL = serving(*NAMES)
NONE_SENT: dict[str, int] = dict.fromkeys(NAMES, 0)


def chat(name: str, turns: int = 1, *sessions: int) -> BucketRequest:
    """Return the request of a chat at its turn of that number."""
    messages = [SYSTEM, ("user", f"I am {name}")]
    for turn in range(1, turns):
        messages += [("assistant", f"{name} {turn}"), ("user", f"question {turn}")]
    text = "\n".join(text for _, text in messages)
    return BucketRequest(
        prompt_start=text,
        prompt_chars=len(text),
        opening=f"{SYSTEM[1]}\nI am {name}",
        keys=chat_keys(0, messages),
        sessions=sessions,
    )


def send(
    placing: Placing,
    request: BucketRequest,
    among: Mapping[str, list[RouterReplica]] = ALL,
    now: float = 0.0,
) -> str:
    return placing.place(request, among, NONE_SENT, now)[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_conversations_stay_under_each_policy(policy: BucketPolicy) -> None:
    placing = Placing(policy, HomeOptions())
    names = [f"user {number}" for number in range(60)]

    first = [send(placing, chat(name)) for name in names]
    later = [[send(placing, chat(name, turns)) for turns in (2, 3, 9)] for name in names]

    assert later == [[bucket] * 3 for bucket in first]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_goes_where_it_is_whatever_its_prompts_say(policy: BucketPolicy) -> None:
    placing = Placing(policy, HomeOptions())
    sessions = range(1, 61)

    first = [send(placing, chat(f"{one} first", 1, one)) for one in sessions]
    placed = [placing.place(chat(f"{one} other", 3, one), ALL, NONE_SENT, 0.0) for one in sessions]
    children = [send(placing, chat(f"{one} child", 1, 100 + one, one)) for one in sessions]
    alone = [send(placing, chat(f"{one} grown", 1, 100 + one)) for one in sessions]

    assert placed == [(bucket, "session") for bucket in first]
    assert children == alone == first


def test_a_session_moves_with_its_bucket_gone_and_is_not_drawn_back() -> None:
    placing = Placing("round-robin", HomeOptions())
    home = send(placing, chat("x", 1, 1))
    left = serving(*(name for name in NAMES if name != home))

    moved = send(placing, chat("x", 2, 1), left)

    assert moved != home
    assert send(placing, chat("y", 1, 1)) == moved


def test_prompts_without_keys_take_turns_and_what_is_only_asked_takes_none() -> None:
    placing = Placing("round-robin", HomeOptions())

    asked = [send(placing, BucketRequest(asks=True)) for _ in range(3)]
    assert (asked, [send(placing, BucketRequest()) for _ in range(6)]) == (["a"] * 3, [*"abcabc"])


def test_who_shares_a_beginning_joins_it_until_its_bucket_is_ahead() -> None:
    placing = Placing("round-robin", HomeOptions())

    found = [send(placing, chat(f"user {number}")) for number in range(90)]

    assert (found[:9], Counter(found)) == (["a"] * 9, dict.fromkeys(NAMES, 30))


def test_a_lead_is_counted_for_each_worker_where_all_tell_theirs() -> None:
    placing = Placing("round-robin", HomeOptions())
    sizes = serving("a", workers=1) | serving("b", workers=3)

    found = Counter(send(placing, chat(f"user {number}"), sizes) for number in range(400))
    untold = Placing("round-robin", HomeOptions())
    among = serving("a", workers=1) | serving("b")
    even = Counter(send(untold, chat(f"user {number}"), among) for number in range(400))

    assert found["b"] == pytest.approx(300, abs=10)
    assert even == {"a": 200, "b": 200}


@pytest.mark.parametrize("policy", ["round-robin", "prefix-hash"])
def test_meta_routers_that_share_nothing_agree_by_hash_and_remember_nothing(
    policy: BucketPolicy,
) -> None:
    one, other = Placing(policy, ALONE), Placing(policy, ALONE)
    names = [f"user {number}" for number in range(90)]

    first = [send(one, chat(name)) for name in names]
    second = [send(other, chat(name, 2)) for name in reversed(names)][::-1]
    sessions = [send(one, chat(name, 1, 5)) for name in names]

    assert first == second
    assert min(Counter(first).values()) > 15
    assert set(sessions) == {send(other, chat("z", 3, 7, 5))}
    assert len(one.conversations.homes) == 0
    left = [name for name in NAMES if name != "a"]
    moved = [send(one, chat(name, 3), serving(*left)) for name in names]
    assert all(was in {now, "a"} for was, now in zip(first, moved, strict=True))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sets(st.sampled_from(NAMES), min_size=1),
        st.sampled_from((0.0, 10.0)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from(("round-robin", "least-loaded")))
def test_whatever_goes_away_a_conversation_moves_only_when_its_bucket_is_not_there(
    steps: list[tuple[int, set[str], float]], policy: BucketPolicy
) -> None:
    """Against a naive model: a table of every conversation's last bucket."""
    placing, now = Placing(policy, HomeOptions()), 0.0
    turns: defaultdict[int, int] = defaultdict(int)
    last: dict[int, str] = {}
    for number, there, passed in steps:
        now += passed
        turns[number] += 1

        bucket = send(placing, chat(f"{number}", turns[number]), serving(*sorted(there)), now)

        if last.get(number) in there:
            assert bucket == last[number]
        assert bucket in there
        last[number] = bucket


def test_a_flood_of_conversations_takes_no_more_memory_than_was_given() -> None:
    placing = Placing("round-robin", HomeOptions(max_homes=500))

    for number in range(2000):
        send(placing, chat(f"user {number}", 3, number))

    assert len(placing.conversations.homes) == 500
    assert len(placing.conversations.homes.updates) <= 500
    assert send(placing, chat("user 1999", 4)) == send(placing, chat("user 1999", 5))


def test_one_name_needs_no_hash() -> None:
    assert rendezvous(["only"], b"key") == "only"
