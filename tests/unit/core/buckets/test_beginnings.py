import string

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.buckets.beginnings import (
    DEPTHS,
    MOST_ENDS,
    MOST_MESSAGES,
    NO_KEYS,
    chat_keys,
    depth_keys,
    key_seed,
    prompt_family,
    text_keys,
)

SYSTEM = ("system", "You are helpful.")


def all_keys(messages: list[tuple[str, str]], seed: int = 0) -> set[int]:
    """Return the keys of a chat by which a later turn can find it."""
    keys = chat_keys(seed, messages)
    root = set() if keys.root is None else {keys.root.key}
    return {*keys.ends, *root}


def test_instructions_end_with_the_last_message_of_the_head_and_the_root_with_the_first_user() -> (
    None
):
    greeting = ("assistant", "Hello, I can help.")
    keys = chat_keys(0, [SYSTEM, ("developer", "Be short."), greeting, ("user", "Hi")])

    head = chat_keys(0, [SYSTEM, ("developer", "Be short."), ("user", "Other")])
    assert keys.instructions == head.instructions
    assert keys.instructions is not None
    assert keys.instructions.chars == 25
    assert keys.root is not None
    assert (keys.root.chars, keys.ends) == (45, ())
    assert chat_keys(0, [SYSTEM]).root == chat_keys(0, [SYSTEM]).instructions
    assert chat_keys(0, [("user", "Hi"), SYSTEM]).instructions is None
    assert chat_keys(0, [("tool", "42")]).root is not None
    assert chat_keys(0, []) == NO_KEYS


def test_tools_and_model_are_part_of_all_keys_and_tools_alone_are_instructions() -> None:
    messages = [("user", "Hi"), ("assistant", "Hello")]
    seeds = [key_seed(b"m"), key_seed(b"n"), key_seed(b"m", b"[1]"), key_seed(b"m[", b"1]")]

    found = [all_keys(messages, seed) for seed in seeds]

    assert len(set.union(*found)) == sum(map(len, found))
    with_tools = chat_keys(seeds[2], messages, tools=True)
    assert with_tools.instructions is not None
    assert chat_keys(seeds[2], messages).instructions is None
    assert chat_keys(seeds[2], [SYSTEM, *messages], tools=True).instructions != (
        with_tools.instructions
    )


def test_only_the_newest_ends_of_a_long_chat_are_keys_and_never_more_than_so_many() -> None:
    turns = [("user", "Hi"), *(("assistant", str(number)) for number in range(100))]
    endless = [("user", "Hi"), *([("user", "more")] * 2 * MOST_MESSAGES)]

    assert len(chat_keys(0, turns).ends) == MOST_ENDS
    assert chat_keys(0, turns[:-1]).ends[0] == chat_keys(0, turns).ends[1]
    assert chat_keys(0, endless) == chat_keys(0, endless[:MOST_MESSAGES])


def test_answered_tells_a_second_turn_from_later_ones() -> None:
    second = [("user", "Hi"), ("assistant", "a"), ("assistant", "b"), ("user", "and?")]

    assert not chat_keys(0, second[:1]).answered
    assert not chat_keys(0, second).answered
    assert chat_keys(0, [*second, ("assistant", "c"), ("user", "so?")]).answered


@given(st.text(alphabet=string.printable + "é\U0001f600", min_size=1), st.integers(0, 600))
def test_depths_are_hashes_of_what_stands_before_them(unit: str, times: int) -> None:
    text = unit * times
    reached = [depth for depth in DEPTHS if depth <= len(text)]

    found = depth_keys(7, text)

    assert [one.chars for one in found] == reached
    assert [one.key for one in found] == [
        xxhash.xxh3_64_intdigest(text[:depth].encode(), 7) for depth in reached
    ]


def test_no_depth_is_beyond_the_last() -> None:
    assert [one.chars for one in depth_keys(0, "x" * 40_000)] == [*DEPTHS]


def test_texts_that_cannot_be_encoded_have_keys_too() -> None:
    odd = "\udcff" * 300

    assert depth_keys(0, odd) != depth_keys(0, "x" * 300)
    assert chat_keys(0, [("user", odd)]).root is not None
    assert text_keys(0, odd).whole is not None
    assert text_keys(0, "a") != text_keys(1, "a") != text_keys(1, "b")
    assert len(prompt_family(odd)) == 16


def test_a_family_is_its_first_256_characters() -> None:
    assert prompt_family("x" * 256) == prompt_family("x" * 300)
    assert prompt_family("x" * 256) != prompt_family("x" * 255)
