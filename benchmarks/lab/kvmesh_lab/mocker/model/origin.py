"""Which prompt an engine was answering, of one that ends in the beginning of that answer."""

import hashlib
from array import array
from typing import Final

from kvmesh.core.blocks.events import HASH_BYTES, ROOT
from kvmesh.core.blocks.hashing import TOKEN_BYTES
from kvmesh_lab.mocker.model.answer import GeneratedAnswer, Vocabulary, answer_seed

MOST_GENERATED: Final = 4096
"""Tokens of an answer that are recognised at a prompt's end at most."""
MOST_DRAWS: Final = 2048
MOST_HASHED: Final = 32 << 20
"""A search ends after so many first words, or bytes of prompts hashed: about 5 ms."""


def continued_tokens(
    prompt: "array[int]", vocabulary: Vocabulary, *, root: int = ROOT, seed: int = 0
) -> int:
    """Return how many tokens at the prompt's end are what an engine generates for those before.

    Of several such places the first counts, 0 for none. `root` and `seed` are those of the answer.
    Where a search ends early for its bounds, a place behind that may be returned.
    """
    tokens, length = memoryview(prompt), len(prompt)
    openings, first_words = vocabulary.openings, vocabulary.first_words
    found = draws = hashed = 0
    for cut in range(length - 1, max(1, length - MOST_GENERATED) - 1, -1):
        seconds = openings.get(prompt[cut])
        if seconds is None or (cut + 1 < length and prompt[cut + 1] not in seconds):
            continue
        draws += 1
        hashed += cut * TOKEN_BYTES
        if draws > MOST_DRAWS or hashed > MOST_HASHED:
            break
        key = answer_seed(tokens[:cut], root, seed) + bytes(HASH_BYTES)
        drawn = hashlib.shake_128(key).digest(1)[0]
        word = first_words[drawn % len(first_words)].tokens[: length - cut]
        if tuple(prompt[cut : cut + len(word)]) != word:
            continue
        answer = GeneratedAnswer(prompt[:cut], 1, vocabulary, root=root, seed=seed)
        if answer.token_ids(0, length - cut) == prompt[cut:].tolist():
            found = length - cut
    return found
