from kvmesh.core.buckets.beginnings import PromptKeys, chat_keys, text_keys
from kvmesh.core.buckets.conversations import MOST_PASSED, Conversations, find_beginnings
from kvmesh.core.buckets.homes import HomeOptions

SYSTEM = ("system", "You are helpful.")


def chat(name: str, turns: int = 1, first: str = "") -> PromptKeys:
    """Return the keys of a chat of which so many requests were made."""
    messages = [SYSTEM, ("user", first or f"I am {name}")]
    for turn in range(1, turns):
        messages += [("assistant", f"{name} {turn}"), ("user", f"question {turn}")]
    return chat_keys(0, messages)


def send(known: Conversations, keys: PromptKeys, bucket: str) -> tuple[str, ...]:
    """Return where the conversation was, and note that it goes to `bucket`."""
    found = known.find(keys, 0.0)
    beginnings = [] if bucket in found else find_beginnings(keys, "")
    known.note(keys, beginnings, bucket, 0.0)
    return found


def reported(one: Conversations, other: Conversations) -> int:
    """Tell `other` the news of `one`; return how many."""
    updates, one.homes.updates = one.homes.updates, {}
    for key, value in updates.items():
        other.homes.learn(key, value, 0.0)
    return len(updates)


def test_each_turn_of_a_conversation_finds_its_bucket_and_a_first_turn_none() -> None:
    known = Conversations(HomeOptions())

    assert (send(known, chat("Ann"), "a"), send(known, chat("Bob"), "b")) == ((), ())
    for turns in (2, 3, 4, 30):
        assert send(known, chat("Ann", turns), "a") == ("a",)
        assert send(known, chat("Bob", turns), "b") == ("b",)
    assert (known.find(chat("Ann"), 0.0), known.find(text_keys(0, "Ann"), 0.0)) == ((), ())


def test_another_meta_router_is_told_of_a_conversation_once() -> None:
    one, other = Conversations(HomeOptions()), Conversations(HomeOptions())
    send(one, chat("Ann"), "a")

    assert reported(one, other) == 2  # instructions and first message
    for turns in (2, 4, 6):
        assert send(other, chat("Ann", turns), "a") == ("a",)
        assert send(one, chat("Ann", turns + 1), "a") == ("a",)
    assert reported(one, other) == reported(other, one) == 0


def test_a_conversation_that_moved_is_found_where_it_went_by_all() -> None:
    one, other = Conversations(HomeOptions()), Conversations(HomeOptions())
    send(one, chat("Ann"), "a")
    send(one, chat("Ann", 2), "b")
    reported(one, other)

    assert send(other, chat("Ann", 3), "b") == ("b",)
    reported(other, one)
    assert one.find(chat("Ann", 4), 0.0) == ("b",)


def few_shot(question: str) -> PromptKeys:
    examples = [("user", "1 + 1"), ("assistant", "2"), ("user", "2 + 2"), ("assistant", "4")]
    return chat_keys(0, [SYSTEM, *examples, ("user", question)])


def test_an_example_that_all_prompts_begin_with_is_no_conversation() -> None:
    known, other = Conversations(HomeOptions()), Conversations(HomeOptions())

    found = [send(known, few_shot(str(number)), "a") for number in range(9)]

    assert found == [(), *[("a",)] * MOST_PASSED, *[()] * (8 - MOST_PASSED)]
    assert known.find_beginning(find_beginnings(few_shot("9"), ""), 0.0) == ("a",)
    # From then on others are told of each turn, since the first message says too little.
    send(known, few_shot("more"), "b")
    reported(known, other)
    asked = [("user", "1 + 1"), ("assistant", "2"), ("user", "2 + 2"), ("assistant", "4")]
    asked += [("user", "more"), ("assistant", "what?"), ("user", "5 + 5")]
    assert other.find(chat_keys(0, [SYSTEM, *asked]), 0.0) == ("b",)


def test_asking_counts_nothing() -> None:
    known = Conversations(HomeOptions())
    send(known, few_shot("0"), "a")

    assert {known.find(few_shot("1"), 0.0, passes=False) for _ in range(9)} == {("a",)}
