from array import array
from collections.abc import Sequence

import pytest

from kvmesh.core.blocks.hashing import namespace_root, sequence_hashes
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh_lab.mocker.model.answer import (
    WORDS,
    Ending,
    GeneratedAnswer,
    StopRules,
    Vocabulary,
    plan_ending,
)

BYTES = ByteTokenizer()
VOCABULARY = Vocabulary(lambda text: BYTES.encode(text, add_special_tokens=False), BYTES.decode)


def answer(prompt: str = "hello there", root: int = 0, seed: int = 0) -> GeneratedAnswer:
    tokens = BYTES.encode(prompt, add_special_tokens=False)
    return GeneratedAnswer(tokens, 4, VOCABULARY, root=root, seed=seed)


def test_the_same_request_gets_the_same_words_and_another_one_others() -> None:
    first = answer().text(0, 200)

    assert first == answer().text(0, 200)
    assert first != answer("hello you").text(0, 200)
    assert first != answer(seed=1).text(0, 200)
    assert set(first.split()[:-1]) <= set(WORDS)
    assert not first.startswith(" ")


def test_block_hashes_are_those_of_prompt_and_answer_together() -> None:
    root = namespace_root(cache_salt="tenant")
    one = answer(root=root)
    hashes: list[int] = []
    for index in range(20):
        hashes.append(one.block_hash(index, hashes[-1] if hashes else 0))

    assert hashes == sequence_hashes(one.tokens[:80], 4, root)
    assert one.block_tokens(2, 3) == one.tokens[8:20]


def test_an_answer_ends_by_itself_or_at_max_tokens() -> None:
    one = answer()
    natural = one.natural_tokens

    assert 64 <= natural < 448
    assert plan_ending(one, StopRules(max_tokens=1000)) == Ending(natural, "stop")
    assert plan_ending(one, StopRules(max_tokens=10)) == Ending(10, "length")
    assert plan_ending(one, StopRules(max_tokens=1000, ignore_eos=True)).tokens == 1000
    assert plan_ending(one, StopRules(max_tokens=1000, min_tokens=900)).tokens == 900


def test_a_stop_string_ends_the_answer_before_it() -> None:
    one = answer()
    text = one.text(0, 60)
    stop = text[20:26]
    at = text.index(stop)

    ending = plan_ending(one, StopRules(max_tokens=60, stop=("\0", stop)))
    assert ending == Ending(at + 6, "stop", stop, at)

    included = plan_ending(
        one, StopRules(max_tokens=60, stop=(stop,), include_stop_str_in_output=True)
    )
    assert included.characters == at + 6


def test_of_two_stop_strings_the_earlier_one_counts() -> None:
    one = answer()
    text = one.text(0, 60)

    ending = plan_ending(one, StopRules(max_tokens=60, stop=(text[30:40], text[5:10])))

    assert ending.tokens == 10
    later = plan_ending(one, StopRules(max_tokens=60, stop=(text[5:10], text[30:40])))
    assert later == ending


def test_stops_within_min_tokens_are_passed_over() -> None:
    one = answer()
    text, ids = one.text(0, 60), one.token_ids(0, 60)

    by_text = plan_ending(one, StopRules(max_tokens=60, min_tokens=30, stop=(text[:30],)))
    by_token = plan_ending(one, StopRules(max_tokens=60, min_tokens=60, stop_token_ids=(ids[3],)))

    assert by_text == Ending(60, "length")
    assert by_token == Ending(60, "length")


def test_a_stop_token_ends_the_answer_with_it() -> None:
    one = answer()
    wanted = one.token_ids(0, 60)[10]
    first = one.token_ids(0, 60).index(wanted)

    ending = plan_ending(one, StopRules(max_tokens=60, stop_token_ids=(wanted,)))

    assert ending == Ending(first + 1, "stop", wanted)


@pytest.mark.parametrize("space", ["kept", "dropped"])
def test_words_of_several_tokens_are_told_piece_by_piece(space: str) -> None:
    known: list[str] = []

    def encode(text: str) -> list[int]:
        parts = [text[i : i + 3] for i in range(0, len(text), 3)]
        known.extend(part for part in parts if part not in known)
        return [known.index(part) for part in parts]

    def decode(ids: Sequence[int]) -> str:
        text = "".join(known[i] for i in ids)
        return text.lstrip(" ") if space == "dropped" else text

    vocabulary = Vocabulary(encode, decode)

    for word, entry in zip(WORDS, vocabulary.words, strict=True):
        assert "".join(entry.pieces) == f" {word}"
        assert len(entry.pieces) == len(entry.tokens)
    assert GeneratedAnswer(array("I", [1]), 4, vocabulary).text(0, 5)
