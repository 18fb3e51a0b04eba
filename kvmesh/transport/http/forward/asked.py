"""What is asked of upstreams that their clients did not ask for: a stream's usage, and token ids.

An upstream that rejects a field that it does not know is asked again without it, and so is every
request that it gets from then on.
"""

from typing import Final

from kvmesh._native import EventStream, ask_usage
from kvmesh.core.chat.stream_form import with_ids

_MOST_KNOWN: Final = 4096
"""Upstreams of which is remembered whether they take a field."""

_UNREAD: Final = frozenset({400, 422})
"""What an upstream may answer to a field that it does not know."""

ASKED_FORMS: Final = frozenset({"chat", "completions"})
"""APIs whose streams report usage only to who asks for it."""


class Takers:
    """Upstreams by whether they take a field: those that `give` what it asks for have done so;
    those that `refuse` do not take a body with it.
    """

    __slots__ = ("gives", "refuses")

    def __init__(self) -> None:
        self.gives: set[str] = set()
        self.refuses: set[str] = set()

    def gave(self, origin: str) -> None:
        """Note that an upstream has taken the field."""
        if len(self.gives) < _MOST_KNOWN:
            self.gives.add(origin)

    def doubt(self, origin: str) -> bool:
        """Take an upstream for one that does not; False: it is known whether it does."""
        if origin in self.gives or origin in self.refuses:
            return False
        if len(self.refuses) >= _MOST_KNOWN:
            self.refuses.clear()
        self.refuses.add(origin)
        return True


class AskedField:
    """A field that is asked for in the attempts of one request, of upstreams that are `takers`."""

    __slots__ = ("_asked", "_doubted", "_takers")

    def __init__(self, takers: Takers) -> None:
        self._takers = takers
        self._asked = False
        self._doubted = ""

    def doubt(self, origin: str) -> bool:
        """Leave it out from now on, if nobody knows whether this upstream takes it; False: it was
        not asked for, or the upstream has taken it before.
        """
        doubted = self._asked and self._takers.doubt(origin)
        if doubted:
            self._doubted = origin
        return doubted

    def absolve(self, origin: str) -> None:
        """Forget that it was doubted: the upstream rejects the request without it, too."""
        if self._doubted == origin:
            self._takers.refuses.discard(origin)


def is_unread(status: int, origin: str, *fields: AskedField | None) -> bool:
    """Return whether an upstream may have rejected a request for one of the `fields` that it was
    asked for: then it is asked again without the first that may be it.
    """
    if status not in _UNREAD:
        return False
    asked = [one for one in fields if one is not None]
    if any(one.doubt(origin) for one in asked):
        return True
    for one in asked:
        one.absolve(origin)
    return False


class AskedUsage(AskedField):
    """The usage of one stream, asked for where its client does not ask: then the event that reports
    it does not pass.
    """

    __slots__ = ()

    def sent(self, body: bytes, origin: str, *, ids: bool) -> bytes:
        """Return the body of the next attempt; with `ids` it asks for token ids, too."""
        asked = None if origin in self._takers.refuses else ask_usage(body, ids)
        self._asked = asked is not None
        if asked is None:
            return with_ids(body) if ids else body
        return asked

    def watch(self, stream: EventStream, origin: str) -> None:
        """Have usage left out of what passes of an upstream's stream, if it was asked for."""
        if self._asked:
            stream.hides_usage = True
            if origin not in self._takers.gives:
                self._takers.gave(origin)
