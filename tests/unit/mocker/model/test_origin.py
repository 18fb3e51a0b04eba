import random
import time
from array import array

import pytest

from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh_lab.mocker.model import origin
from kvmesh_lab.mocker.model.answer import (
    Ending,
    GeneratedAnswer,
    StopRules,
    Vocabulary,
    plan_ending,
)
from kvmesh_lab.mocker.model.origin import MOST_GENERATED, continued_tokens

BYTES = ByteTokenizer()
OF_BYTES = Vocabulary(lambda text: BYTES.encode(text, add_special_tokens=False), BYTES.decode)


def _by_word() -> Vocabulary:
    """A vocabulary in which each word is a token, with the space before it another one."""
    known: dict[str, int] = {}
    names: list[str] = []

    def encode(text: str) -> list[int]:
        if text not in known:
            known[text] = len(names)
            names.append(text)
        return [known[text]]

    return Vocabulary(encode, lambda ids: "".join(names[one] for one in ids))


BY_WORD = _by_word()
PROMPT = array("I", list(b"user: how long is the river?\nassistant:"))
vocabularies = pytest.mark.parametrize("vocabulary", [OF_BYTES, BY_WORD], ids=["bytes", "words"])


def prompt_and(generated: int, vocabulary: Vocabulary, **more: int) -> "array[int]":
    """Return the prompt and so many tokens of its answer."""
    one = GeneratedAnswer(PROMPT, 4, vocabulary, **more)
    return PROMPT + array("I", one.token_ids(0, generated))


@vocabularies
@pytest.mark.parametrize("generated", [1, 2, 3, 7, 63, 64, 300])
def test_an_answer_goes_on_where_it_was_cut(generated: int, vocabulary: Vocabulary) -> None:
    whole = GeneratedAnswer(PROMPT, 4, vocabulary, root=9, seed=3)
    prompt = prompt_and(generated, vocabulary, root=9, seed=3)

    found = continued_tokens(prompt, vocabulary, root=9, seed=3)
    rest = GeneratedAnswer(prompt, 4, vocabulary, root=9, seed=3, continued=found)

    assert found == generated
    assert rest.prompt_tokens == len(prompt)
    assert rest.token_ids(0, 100) == whole.token_ids(generated, generated + 100)
    assert rest.text(5, 100) == whole.text(generated + 5, generated + 100)
    assert rest.natural_tokens == max(1, whole.natural_tokens - generated)
    hashes: list[int] = []
    for index in range(len(prompt) // 4 + 2):
        hashes.append(rest.block_hash(index, hashes[-1] if hashes else 0))
    whole.generate(generated + 16)
    assert hashes == sequence_hashes(whole.tokens[: 4 * len(hashes)], 4, 9)


@vocabularies
def test_the_limits_of_a_request_count_from_its_own_begin(vocabulary: Vocabulary) -> None:
    prompt = prompt_and(50, vocabulary)
    whole = GeneratedAnswer(PROMPT, 4, vocabulary)
    rest = GeneratedAnswer(prompt, 4, vocabulary, continued=50)
    stop = whole.text(60, 70)

    assert plan_ending(rest, StopRules(max_tokens=5)) == Ending(5, "length")
    assert plan_ending(rest, StopRules(max_tokens=900)).tokens == whole.natural_tokens - 50
    assert plan_ending(rest, StopRules(max_tokens=900, min_tokens=600)).tokens == 600
    ending = plan_ending(rest, StopRules(max_tokens=100, stop=(stop,)))
    assert rest.text(0, ending.tokens)[: ending.characters] == whole.text(50, 60)


def test_what_nobody_generated_has_no_origin() -> None:
    changed = prompt_and(40, BY_WORD)
    changed[-5] += 1

    assert continued_tokens(changed, BY_WORD) == 0
    assert continued_tokens(PROMPT, BY_WORD) == 0
    assert continued_tokens(array("I", [5]), BY_WORD) == 0


def test_an_answer_that_was_continued_twice_is_one() -> None:
    prompt = prompt_and(20, OF_BYTES)
    rest = GeneratedAnswer(prompt, 4, OF_BYTES, continued=20)
    again = prompt + array("I", rest.token_ids(0, 15))

    assert continued_tokens(again, OF_BYTES) == 35
    assert again == prompt_and(35, OF_BYTES)


def test_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    longest = array("I", (rng.choice(b"theofandwas ") for _ in range(100_000)))

    began_s = time.process_time()
    assert continued_tokens(longest, OF_BYTES) == 0
    assert time.process_time() - began_s < 1

    long = prompt_and(MOST_GENERATED, BY_WORD)
    assert continued_tokens(long, BY_WORD) == MOST_GENERATED
    assert continued_tokens(prompt_and(MOST_GENERATED + 1, BY_WORD), BY_WORD) == 0
    monkeypatch.setattr(origin, "MOST_DRAWS", 0)
    assert continued_tokens(prompt_and(9, BY_WORD), BY_WORD) == 0
