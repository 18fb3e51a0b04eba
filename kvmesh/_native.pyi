"""What the compiled core has: `kvmesh/native/*.c`, in the same order of rooms.

Shapes, units and errors stand here, how it is done in the C. `tests/unit/test_native_stub.py`
holds this file to the module.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, final

from kvmesh.transport.extproc.messages import (
    Heard,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)

VERSION: Final[int]
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""

# ---- transport: heads, HTTP/1 requests, HTTP/2, ext_proc, ends of requests ----

@final
class Names:
    """Names of headers, in lower case, that somebody asks for: these, and all that begin with
    `prefix`, if that is not empty.

    At most 4096: else `ValueError`.
    """

    def __new__(cls, names: Iterable[bytes], prefix: bytes, /) -> Self: ...

@final
class Head:
    """The headers of one request, in the order sent, names in lower case. O(headers) each.

    They stay the bytes that came: what nobody asks for is never made an object. Raises
    `OverflowError` for headers of 2 GiB.
    """

    def __new__(cls, headers: Iterable[tuple[bytes, bytes]], /) -> Self: ...
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return all, made anew with each call."""

    def get(self, name: bytes, /) -> bytes | None:
        """Return the first value of a name, None without one."""

    def select(self, names: Names, /) -> Sequence[tuple[bytes, bytes]]:
        """Return those that `names` ask for."""

    def has(self, names: Names, /) -> bool:
        """Return whether `names` ask for any."""

    def replaced(self, names: Names, added: Iterable[tuple[bytes, bytes]], /) -> Head:
        """Return the head without those that `names` ask for, and with `added` behind the rest."""

    def render(self, names: Names, /) -> bytes:
        """Return the lines of those that `names` do not ask for, each with its CRLF.

        Raises `ValueError` when a name or value would start a new line (header injection).
        """

def render(headers: Iterable[tuple[bytes, bytes]], /) -> bytes:
    """Return the header lines, each with its CRLF.

    Raises `ValueError` when a name or value would start a new line (header injection).
    """

def match_head(data: bytes, before: bytes, behind: bytes | None, most: int, /) -> bytes | None:
    """Return the body if `data` is one whole message with this head, else None.

    The head is `before`, the body's length, at most `most`, and `behind`; with `behind` None it is
    `before` alone, without a body.
    """

def match_dated(data: bytes, before: bytes, after: bytes, /) -> int:
    """Return where the body begins if `data` begins with this head, else 0.

    The head is `before` alone, or, with `after`, both with a date between them.
    """

def take_request(
    data: bytes, most_head: int, most_target: int, most_headers: int, most_body: int, /
) -> tuple[str, bytes, bytes, str, str, Head] | None:
    """Return method, target, body, path, query and `Head` of the one whole request that `data` is;
    None where llhttp has to look.

    At most so many bytes of head, target and body, and so many headers.
    """

def read_extproc(
    types: tuple[
        type[RequestHeaders],
        type[ResponseHeaders],
        type[RequestBody],
        type[ResponseBody],
        type[RequestTrailers],
        type[ResponseTrailers],
        type[Modes],
        type[Exception],
    ],
    data: bytes,
    /,
) -> Heard:
    """Return what a gateway's message says, in one of these types.

    Of a field that may stand once the last counts. Fields and metadata that a picker has no use for
    are skipped. Raises the last of the types for what is no `ProcessingRequest`, or an empty one.
    """

def write_extproc(
    field: int,
    headers: Iterable[tuple[bytes, bytes]],
    removed: Iterable[bytes],
    endpoint: bytes | None,
    body: bytes | None,
    /,
) -> bytes:
    """Return the answer with that number, 1 to 15, to headers or a buffered body, which `body`
    replaces.

    With an endpoint it is a pick: named in a header and in dynamic metadata, and the route is
    chosen anew.
    """

def write_extproc_piece(field: int, data: bytes, end: object, /) -> bytes:
    """Return the answer that streams a piece of a body on, in the field with that number."""

# ---- index: table, beliefs, hash chains ----

# ---- engines and prompts: engines' caches, event streams, bodies, texts ----

# ---- workers and routing: loads, bookings, speeds, lengths, replicas' bookings ----

# ---- insight: records, totals, histograms ----

# ---- decision: formulas, courses, the decider ----

def __getattr__(name: str) -> Any: ...  # noqa: ANN401  until all of them stand above
