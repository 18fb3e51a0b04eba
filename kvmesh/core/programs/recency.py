"""In which order an engine's cache will let contexts go, as far as a router can tell."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import msgspec

MOST_ENTRIES: Final = 1024
"""Contexts known of one engine; the oldest is forgotten first, as the engine does."""


class Held(msgspec.Struct, frozen=True):
    """What an engine holds of a context: its own `tokens`, not those it shares with others.

    `newer_tokens` were used after it: an engine that evicts the longest unused keeps it while both
    fit. `agent` is "" for what no agent will come back for.
    """

    agent: str
    tokens: int
    newer_tokens: int


class Recency:
    """One engine's contexts, longest unused first; those of requests without a program count as
    one that nobody uses again. A use is O(1).

    Real caches keep blocks: a context's last blocks go before its first, and what several share
    goes with the last of them. Counting contexts errs towards going too soon.
    """

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, int] = OrderedDict()
        self._unnamed = 0

    def use(self, agent: str, context_tokens: int, new_tokens: int) -> None:
        """Note that an agent's context of so many tokens was used, of which some were written.

        What it had beyond that is another branch of its, to which nobody will come back.
        """
        own, context = self._tokens.pop(agent, 0) + max(0, new_tokens), max(0, context_tokens)
        self.write(own - context)
        self._tokens[agent] = min(own, context)
        self._trim()

    def write(self, tokens: int) -> None:
        """Note that so many tokens were written that nobody is known to use again."""
        if tokens < 1:
            return
        last = next(reversed(self._tokens), None)
        if last is None or not last.startswith(_UNNAMED):
            self._unnamed += 1
            last = f"{_UNNAMED}{self._unnamed}"
        self._tokens[last] = self._tokens.get(last, 0) + tokens
        self._trim()

    def held(self, capacity_tokens: int) -> Iterator[Held]:
        """Yield what a cache of so many tokens still holds some of, the newest first."""
        newer = 0
        for key, tokens in reversed(self._tokens.items()):
            if newer >= capacity_tokens:
                break
            yield Held("" if key.startswith(_UNNAMED) else key, tokens, newer)
            newer += tokens

    def _trim(self) -> None:
        while len(self._tokens) > MOST_ENTRIES:
            self._tokens.popitem(last=False)


_UNNAMED: Final = "-"
"""Begins the names of what no agent has; an agent's key is of hexadecimal digits."""
