"""What a simulated engine answers: pseudo-random English words, the same for the same request."""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.events import HASH_BYTES, ROOT
from kvmesh.core.blocks.hashing import TOKEN_BYTES, extend_hash

FinishReason = Literal["stop", "length", "abort"]

NATURAL_LEAST: Final = 64
NATURAL_SPREAD: Final = 384
"""Left to itself the engine ends an answer after 64 to 447 tokens."""

_TEXT: Final = (
    "the of and a to in is it you that he was for on are with as I his they be at one have this "
    "from or had by hot but some what there we can out other were all your when up use word how "
    "said an each she which do their time if will way about many then them would write like so "
    "these her long make thing see him two has look more day could go come did my sound no most "
    "number who over know water than call first people may down side been now find any new work "
    "part take get place made live where after back little only round man year came show every "
    "good me give our under name very through just form much great think say help low line before"
)
WORDS: Final = tuple(_TEXT.split())
_WORDS_A_DRAW: Final = 64


class Word(msgspec.Struct, frozen=True):
    """One word's tokens, and the text that each of them adds."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]


class Vocabulary:
    """The words in a model's tokens. `encode` gives a text's ids, `decode` the inverse.

    `openings` has what answers begin with: which tokens may follow each first one.
    """

    def __init__(
        self, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.words = [_split(f" {word}", encode, decode) for word in WORDS]
        self.first_words = [_split(word, encode, decode) for word in WORDS]
        behind = {word.tokens[0] for word in self.words}
        self.openings: dict[int, set[int]] = {}
        for word in self.first_words:
            first, *more = word.tokens
            self.openings.setdefault(first, set()).update(more[:1] or behind)


def _split(
    text: str, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str]
) -> Word:
    """Return the word's tokens, each with the text that appears with it.

    Decoders that drop a leading space do so for every prefix; it appears with the first token.
    """
    tokens = tuple(encode(text))
    dropped = max(0, len(text) - len(decode(tokens)))
    ends = [min(len(text), dropped + len(decode(tokens[:n]))) for n in range(1, len(tokens))]
    ends.append(len(text))
    starts = [0, *ends[:-1]]
    pieces = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return Word(tokens, pieces)


def answer_seed(prompt: "array[int] | memoryview", root: int, seed: int) -> bytes:
    """Return what the words of the answer to a prompt are drawn by. O(prompt)."""
    return xxh3_64_intdigest(prompt, (root + seed) % 2**64).to_bytes(HASH_BYTES, "little")


class GeneratedAnswer:
    """Prompt and answer of one request, the answer made as far as it is asked for.

    `root` is the hash that first blocks begin from (the namespace's). The last `continued` tokens
    of the prompt are the beginning of the answer to those before: what follows is the rest of it.
    A `RequestContent`.
    """

    def __init__(
        self,
        prompt: "array[int]",
        block_size: int,
        vocabulary: Vocabulary,
        *,
        root: int = ROOT,
        seed: int = 0,
        continued: int = 0,
    ) -> None:
        self.prompt_tokens = len(prompt)
        origin = prompt[: len(prompt) - continued] if continued else prompt
        self.tokens = array("I", origin)
        self._continued = continued
        self._pieces: list[str] = []
        """The text each token of the answer adds, from its begin."""
        self._block_size = block_size
        self._root = root
        self.extras: Mapping[int, int] = {}
        """By block, what stands for the media in it."""
        self._vocabulary = vocabulary
        self._seed = answer_seed(origin, root, seed)
        self._draws = 0
        self.generate(0)

    @property
    def natural_tokens(self) -> int:
        """Return the answer's length in tokens when nothing else ends it, at least 1."""
        natural = NATURAL_LEAST + int.from_bytes(self._seed, "little") % NATURAL_SPREAD
        return max(1, natural - self._continued)

    def generate(self, count: int) -> None:
        """Make at least `count` tokens of answer. O(tokens made), 0.1 us each."""
        while len(self._pieces) < self._continued + count:
            key = self._seed + self._draws.to_bytes(HASH_BYTES, "little")
            for byte in hashlib.shake_128(key).digest(_WORDS_A_DRAW):
                table = self._vocabulary.words if self._pieces else self._vocabulary.first_words
                word = table[byte % len(table)]
                self.tokens.extend(word.tokens)
                self._pieces += word.pieces
            self._draws += 1

    def text(self, first: int, last: int) -> str:
        """Return the text that tokens `first` up to, not including, `last` of the answer add."""
        return "".join(self.pieces(first, last))

    def pieces(self, first: int, last: int) -> list[str]:
        """Return the text that each of these tokens adds."""
        self.generate(last)
        return self._pieces[self._continued + first : self._continued + last]

    def token_ids(self, first: int, last: int) -> list[int]:
        """Return tokens `first` up to, not including, `last` of the answer."""
        self.generate(last)
        return self.tokens[self.prompt_tokens + first : self.prompt_tokens + last].tolist()

    def block_hash(self, index: int, parent: int) -> int:
        """Return the sequence hash of full block `index`."""
        self.generate((index + 1) * self._block_size - self.prompt_tokens)
        start, end = index * self._block_size, (index + 1) * self._block_size
        assert self.tokens.itemsize == TOKEN_BYTES
        seed = parent if index else self._root
        if index in self.extras:
            seed = extend_hash(seed, self.extras[index])
        return xxh3_64_intdigest(self.tokens[start:end], seed)

    def block_tokens(self, first: int, count: int) -> "array[int]":
        """Return the token ids of `count` full blocks from block `first` on."""
        return self.tokens[first * self._block_size : (first + count) * self._block_size]


class StopRules(msgspec.Struct, frozen=True):
    """When an answer ends. The names are vLLM's sampling parameters."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False


class Ending(msgspec.Struct, frozen=True):
    """How an answer ends: its tokens, and why.

    `characters` is where its text ends when a stop string cuts it, else None: with the last token.
    """

    tokens: int
    reason: FinishReason
    stop_reason: str | int | None = None
    characters: int | None = None


def plan_ending(answer: GeneratedAnswer, rules: StopRules) -> Ending:
    """Return where `answer` ends under `rules`; only with stop rules is it made in advance."""
    natural = max(answer.natural_tokens, rules.min_tokens)
    if rules.ignore_eos or natural > rules.max_tokens:
        ending = Ending(rules.max_tokens, "length")
    else:
        ending = Ending(natural, "stop")
    if rules.stop_token_ids:
        ending = _stop_at_token(answer, rules, ending)
    if rules.stop:
        ending = _stop_at_text(answer, rules, ending)
    return ending


def _stop_at_token(answer: GeneratedAnswer, rules: StopRules, ending: Ending) -> Ending:
    ids, wanted = answer.token_ids(0, ending.tokens), frozenset(rules.stop_token_ids)
    for index in range(rules.min_tokens, ending.tokens):
        if ids[index] in wanted:
            return Ending(index + 1, "stop", ids[index])
    return ending


def _stop_at_text(answer: GeneratedAnswer, rules: StopRules, ending: Ending) -> Ending:
    """Return the ending at the first stop string; of several in one token the first listed."""
    text = answer.text(0, ending.tokens)
    ends = list(accumulate(map(len, answer.pieces(0, ending.tokens))))
    searched = ends[rules.min_tokens - 1] if 0 < rules.min_tokens <= len(ends) else 0
    for stop in rules.stop:
        start = text.find(stop, searched)
        if start < 0:
            continue
        end = start + len(stop)
        tokens = bisect_left(ends, end) + 1
        if tokens < ending.tokens or ending.stop_reason is None:
            cut = end if rules.include_stop_str_in_output else start
            ending = Ending(tokens, "stop", stop, cut)
    return ending
