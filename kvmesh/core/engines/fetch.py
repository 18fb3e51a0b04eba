"""How a worker takes a prefix from another worker's cache instead of computing it.

A worker says by a label that it can, `kvmesh/fetch/WAY/REST`: WAY is one of its engine's `fetches`,
REST the address at which others reach its cache (`HOST:PORT`, `PORT` or nothing), or, where engines
find each other themselves, the name of those that do. Workers of one way, and one such name, fetch
from each other.
"""

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kvmesh.bounds import whole_number

LABEL: Final = "kvmesh/fetch/"
"""What a label begins with that says how a worker fetches."""

_MAX_PORT: Final = 65_535


class Source(msgspec.Struct, frozen=True):
    """Whose cache to fetch from, for which request: `request_id` is unique for every attempt."""

    host: str
    port: int
    request_id: str


class Fetch(msgspec.Struct, frozen=True):
    """One way in which engines fetch. `body` puts the source into a client's body (None: nothing is
    said, the engine finds it itself); raises `CodecError` for what is none, or names one already.
    `port` is where a cache is reached whose label names none.
    """

    body: Callable[[bytes, Source], bytes] | None = None
    port: int = 0


class Access(msgspec.Struct, frozen=True):
    """What a worker's label says: its `way`, and address or group (`rest`)."""

    way: str
    rest: str = ""

    def address(self, url: str, default_port: int) -> tuple[str, int] | None:
        """Return host and port of its cache, None where they make no sense; `url` is its own."""
        host, _, last = self.rest.rpartition(":")
        port = whole_number(last, 1, _MAX_PORT) if last else default_port
        host = host or urlsplit(url).hostname or ""
        return (host, port) if host and port else None


def read_access(labels: Iterable[str]) -> Access | None:
    """Return what a worker's labels say of fetching; None when they say nothing.

    Of several such labels the first in order counts.
    """
    for label in sorted(labels):
        if label.startswith(LABEL):
            way, _, rest = label.removeprefix(LABEL).partition("/")
            if way:
                return Access(way, rest)
    return None
