"""What a load is like, in a few numbers: is it still the one that weights were tuned for?"""

from collections import Counter
from collections.abc import Sequence
from math import exp, log
from typing import Final

import msgspec

from kvmesh.core.insight.trace_ring import TraceRow

CHARACTER_ROWS: Final = 512
"""Requests that a character is measured from, always as many: sharing grows with their number."""

MOST_RATIO: Final = 1.5
"""A mean length that differs by more than this factor is another load."""

MOST_RATE_RATIO: Final = 2.0
"""The same of a rate: answers of one batch end together."""

MOST_DIFFERENCE: Final = 0.2
"""The same of a share."""


class Character(msgspec.Struct, frozen=True):
    """What the last requests were like. `requests_per_s` ended, with so many tokens on average.

    `shared` is the part of the prompt tokens that a request before it had, in whole blocks, `hot`
    the part of the requests that begin like the most frequent one, `prefill` the part of all tokens
    that is left to prefill if all that is shared is cached.
    """

    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    shared: float
    hot: float
    prefill: float


def character_of(rows: Sequence[TraceRow], block_tokens: int, share: float = 1.0) -> Character:
    """Return what `rows` (at least two, in order) are like; they are `share` of all. O(blocks)."""
    seen: set[bytes] = set()
    first: Counter[bytes] = Counter()
    prompt = output = shared = 0
    for row in rows:
        keys, depth = row.beginnings(), 0
        for key in keys:
            if key not in seen:
                break
            depth += 1
        seen.update(keys)
        first.update(keys[:1])
        prompt += row.prompt_tokens
        output += row.output_tokens
        shared += min(depth * block_tokens, row.prompt_tokens)
    count, ends = len(rows), [row.ended_s for row in rows]
    most = max(first.values(), default=0)
    return Character(
        requests_per_s=(count - 1) / max(max(ends) - min(ends), 0.001) / share,
        prompt_tokens=prompt / count,
        output_tokens=output / count,
        shared=shared / max(1, prompt),
        hot=most / count,
        prefill=(prompt - shared) / max(1, prompt - shared + output),
    )


_WORDS: Final = {
    "requests_per_s": "requests/s",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "shared": "share of the prompts that others had before",
    "hot": "share of the most frequent beginning",
    "prefill": "share of prefill in all tokens",
}
_SHARES: Final = frozenset({"shared", "hot", "prefill"})


def differences(before: Character, after: Character) -> tuple[str, ...]:
    """Return in words what makes `after` another load than `before`; () when it is the same."""
    found: list[str] = []
    for name, words in _WORDS.items():
        old, new = float(getattr(before, name)), float(getattr(after, name))
        if name in _SHARES:
            if abs(new - old) > MOST_DIFFERENCE:
                found.append(f"{words} {old:.0%} -> {new:.0%}")
        elif ratio_of(old, new) > (MOST_RATE_RATIO if name == "requests_per_s" else MOST_RATIO):
            found.append(f"{words} {old:.3g} -> {new:.3g}")
    return tuple(found)


def ratio_of(one: float, other: float) -> float:
    """Return how many times the larger is the smaller, both made 0.001 at least."""
    return exp(abs(log(max(one, 0.001) / max(other, 0.001))))
