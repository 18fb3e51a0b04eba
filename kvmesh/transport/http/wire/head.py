"""The headers of one request: asked for by name, or by sets of names, without a look at the rest.

Compiled in kvmesh/native/head.c: there they stay the bytes that came, and what nobody asks for is
never made an object.
"""

from collections.abc import Iterable
from typing import Protocol, cast

from kvmesh.compiled import NATIVE
from kvmesh.transport.http.wire.headers import Header, Headers, pure_render


class Names:
    """Names of headers, in lower case, that somebody asks for: these, and all that begin with
    `prefix`, if that is not empty.
    """

    def __init__(self, names: Iterable[bytes], prefix: bytes) -> None:
        self._names = frozenset(names)
        self._prefix = prefix

    def __contains__(self, name: bytes) -> bool:
        begins = self._prefix and len(name) > len(self._prefix) and name.startswith(self._prefix)
        return bool(begins) or name in self._names


class Head(Protocol):
    """Headers in the order sent, names in lower case. O(headers) each."""

    def headers(self) -> list[Header]:
        """Return all, made anew with each call."""
        ...

    def get(self, name: bytes, /) -> bytes | None:
        """Return the first value of a name, None without one."""
        ...

    def select(self, names: Names, /) -> Headers:
        """Return those that `names` ask for."""
        ...

    def has(self, names: Names, /) -> bool:
        """Return whether `names` ask for any."""
        ...

    def replaced(self, names: Names, added: Headers, /) -> "Head":
        """Return the head without those that `names` ask for, and with `added` behind the rest."""
        ...

    def render(self, names: Names, /) -> bytes:
        """Return the lines of those that `names` do not ask for, each with its CRLF.

        Raises `ValueError` when a name or value would start a new line (header injection).
        """
        ...


class PureHead:
    """A `Head` of headers that were read already."""

    __slots__ = ("_first", "_headers")

    def __init__(self, headers: Headers) -> None:
        self._headers = list(headers)
        self._first: dict[bytes, bytes] | None = None

    def headers(self) -> list[Header]:
        """Return all."""
        return list(self._headers)

    def get(self, name: bytes, /) -> bytes | None:
        """Return the first value of a name."""
        first = self._first
        if first is None:
            first = self._first = dict(reversed(self._headers))
        return first.get(name)

    def select(self, names: Names, /) -> Headers:
        """Return those that `names` ask for."""
        return [header for header in self._headers if header[0] in names]

    def has(self, names: Names, /) -> bool:
        """Return whether `names` ask for any."""
        return any(name in names for name, _ in self._headers)

    def replaced(self, names: Names, added: Headers, /) -> "PureHead":
        """Return the head without those, and with others."""
        return PureHead([*(one for one in self._headers if one[0] not in names), *added])

    def render(self, names: Names, /) -> bytes:
        """Return the lines of the others."""
        return pure_render([header for header in self._headers if header[0] not in names])


def new_head(headers: Headers) -> Head:
    """Return the head of headers that were read already."""
    return cast("Head", NATIVE.Head(headers)) if NATIVE else PureHead(headers)


def names_of(names: Iterable[bytes], prefix: bytes = b"") -> Names:
    """Return names to ask heads of this process for: compiled as those are."""
    return cast("Names", NATIVE.Names(tuple(names), prefix)) if NATIVE else Names(names, prefix)
