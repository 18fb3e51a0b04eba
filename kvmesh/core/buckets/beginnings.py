"""Keys of a prompt's beginnings: by them a conversation's next turn finds its last one's bucket."""

from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

PREFIX_CHARS: Final = 256
"""How much of a prompt's opening a family shares, characters."""

DEPTHS: Final = tuple(PREFIX_CHARS << doubled for doubled in range(7))
"""Lengths of the beginnings that have keys, characters: 256 to 16,384."""

MOST_MESSAGES: Final = 4096
"""Messages of a chat that are looked at; what follows changes no key."""

MOST_ENDS: Final = 32
"""Ends of messages, newest first, by which an earlier turn of a chat is found."""

_INSTRUCTIONS: Final = frozenset({"system", "developer"})


class Beginning(msgspec.Struct, frozen=True, gc=False):
    """The first `chars` characters of a prompt; equal keys are equal text, model and tools."""

    chars: int
    key: int


class PromptKeys(msgspec.Struct, frozen=True, gc=False):
    """The keys of one prompt, 64 bits each, 0 for none; every one covers model, salt and tools.

    `instructions` ends where the system prompt does, `root` where the first user message does:
    what begins a conversation. `ends` are keys of what follows, at ends of messages, the whole
    prompt first. A prompt that is no chat has only `whole`. `seed` is what `depth_keys` needs.
    `answered`: the newest turns of the assistant are not the first.
    """

    seed: int = 0
    instructions: Beginning | None = None
    root: Beginning | None = None
    ends: tuple[int, ...] = ()
    answered: bool = False
    whole: Beginning | None = None


NO_KEYS: Final = PromptKeys()


def key_seed(*parts: bytes) -> int:
    """Return the seed of a prompt's keys, of what engines put before all messages: model, cache
    salt, tools.
    """
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(b"%d\0" % len(part))
        hasher.update(part)
    return hasher.intdigest()


def chat_keys(seed: int, messages: Sequence[tuple[str, str]], *, tools: bool = False) -> PromptKeys:
    """Return the keys of a chat of (role, text), one digest for each end that may be looked for.

    O(text), and O(1) keys: beyond `MOST_MESSAGES` nothing is read. With `tools` they are
    instructions, too: what engines put before all messages.
    """
    hasher = xxhash.xxh3_64(seed=seed)
    last = min(len(messages), MOST_MESSAGES)
    instructions = Beginning(0, hasher.intdigest()) if tools else None
    root: Beginning | None = None
    ends: list[int] = []
    chars = answers = 0
    opening = True
    for index in range(last):
        role, text = messages[index]
        hasher.update(f"{role}\0{len(text)}\0{text}".encode(errors="surrogatepass"))
        chars += len(text)
        opening = opening and role in _INSTRUCTIONS
        if root is not None:
            answers += role == "assistant" and messages[index - 1][0] != "assistant"
            if index >= last - MOST_ENDS:
                ends.append(hasher.intdigest())
        elif opening:
            instructions = Beginning(chars, hasher.intdigest())
        elif role == "user":
            root = Beginning(chars, hasher.intdigest())
    if root is None and last:
        root = Beginning(chars, hasher.intdigest())
    ends.reverse()
    return PromptKeys(seed, instructions, root, tuple(ends), answers > 1)


def text_keys(seed: int, text: str) -> PromptKeys:
    """Return the keys of a prompt that is no chat."""
    return PromptKeys(seed, whole=Beginning(len(text), _hash(text, seed ^ 1)))


def depth_keys(seed: int, start: str) -> list[Beginning]:
    """Return the beginnings of a prompt's `start` at each of `DEPTHS` that it reaches."""
    hasher = xxhash.xxh3_64(seed=seed)
    found: list[Beginning] = []
    done = 0
    for depth in DEPTHS:
        if depth > len(start):
            break
        hasher.update(start[done:depth].encode(errors="surrogatepass"))
        found.append(Beginning(depth, hasher.intdigest()))
        done = depth
    return found


def prompt_family(opening: str) -> str:
    """Return 16 hex digits for how a prompt begins: equal for the first `PREFIX_CHARS` equal.

    `opening` ends with the first user message, so that all turns of a chat have one family.
    """
    return f"{_hash(opening[:PREFIX_CHARS], 0):016x}"


def _hash(text: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"), seed)
