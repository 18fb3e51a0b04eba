"""What the client of an event stream is told before its first event."""

import re
from math import ceil
from typing import Final

from kvmesh.transport.http.forward.plan import Wait
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import MESSAGES

_HEAD: Final[Headers] = (
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
)
_WAIT_S: Final = b"x-kvmesh-wait-s"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n'
"""What Anthropic's API sends to keep a stream alive: its clients may read no comments."""

_SIGNS: Final = re.compile(rb'(?:(?::[^\n]*|event: ping|data: \{"type":"ping"\})?\n)+')
HELD_IN_VAIN: Final = b'"code":"queue_timeout"'
"""What the error has of a stream that a router held; before a head it is a 503."""


def early_head(wait: Wait) -> Headers:
    """Return the head of a stream before anything is decided, with all that is known."""
    if wait.told is None:
        return _HEAD
    _, most_s = wait.told()
    return (*_HEAD, *wait.headers, (_WAIT_S, b"%d" % ceil(most_s)))


def show_life(exchange: Exchange, wait: Wait, *, due: bool) -> bool:
    """Tell a client that waits for its stream how the wait stands, if that is `due` or it is held
    and does not know; return whether it was told.
    """
    early = wait.told is not None and not exchange.started
    if not (due or early) or (wait.quiet and not exchange.started):
        return False
    if not exchange.started:
        exchange.pass_head(200, b"", early_head(wait), None)
    exchange.write(sign_of_life(wait, exchange.request.path))
    return True


def sign_of_life(wait: Wait, path: str) -> bytes:
    """Return what tells that a stream waits, and how long: as clients of `path` read it."""
    words = b""
    if wait.told is not None:
        expected_s, most_s = map(ceil, wait.told())
        words = b", at most %d s" % most_s
        if expected_s < most_s:
            words = b", about %d s" % expected_s + words
    return b": waiting%b\n%b\n" % (words, _PING if path == MESSAGES else b"")


def is_sign_of_life(data: bytes) -> bool:
    """Return whether a piece of a router's answer holds nothing but signs of life, and comments."""
    return _SIGNS.fullmatch(data) is not None


def late_headers(headers: Headers) -> bytes:
    """Return those of our own headers as comments of an event stream whose head is gone already;
    not for how long it waits, which is over.
    """
    own = [
        b": %b: %b\n" % one
        for one in headers
        if one[0].startswith(b"x-kvmesh-") and one[0] != _WAIT_S
    ]
    return b"".join((*own, b"\n")) if own else b""
