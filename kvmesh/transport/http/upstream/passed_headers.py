"""What of an upstream's headers reaches a client.

A browser lets a response act for its whole origin, and the dashboard, its login and the operator's
other pages may share that of an answer. So nothing an engine sends may set a cookie, name another
address, open a password dialogue, change the origin's rules, or be shown as a page.
"""

import re
from functools import lru_cache
from typing import Final

from kvmesh._native import Head, Names
from kvmesh.transport.http.wire.headers import (
    HOP_BY_HOP,
    PLAIN_CONNECTION,
    Header,
    connection_options,
)

OURS: Final = b"x-kvmesh-"
"""Whoever adds such headers to an answer is the last word: an engine's are dropped."""
NOSNIFF: Final[Header] = (b"x-content-type-options", b"nosniff")
PLAIN: Final[Header] = (b"content-type", b"text/plain; charset=utf-8")
"""In place of every type that a browser could show as a page or run."""

_MADE_HERE: Final = frozenset({b"content-length", b"date", b"x-request-id", NOSNIFF[0]})
_OF_THE_ORIGIN: Final = frozenset(
    {
        b"accept-ch",
        b"activate-storage-access",
        b"alt-svc",
        b"authentication-info",
        b"clear-site-data",
        b"content-location",
        b"critical-ch",
        b"document-policy",
        b"expect-ct",
        b"link",
        b"location",
        b"nel",
        b"origin-agent-cluster",
        b"origin-trial",
        b"permissions-policy",
        b"public-key-pins",
        b"public-key-pins-report-only",
        b"refresh",
        b"report-to",
        b"reporting-endpoints",
        b"service-worker-allowed",
        b"set-cookie",
        b"set-cookie2",
        b"set-login",
        b"sourcemap",
        b"speculation-rules",
        b"strict-transport-security",
        b"timing-allow-origin",
        b"use-as-dictionary",
        b"www-authenticate",
        b"x-sourcemap",
    }
)
_FAMILIES: Final = (b"access-control-", b"content-security-policy", b"cross-origin-", b"sec-")
"""Those of CORS are the front door's to say."""
_DROPPED: Final = _MADE_HERE | _OF_THE_ORIGIN | HOP_BY_HOP | frozenset(_FAMILIES)
NOT_PASSED: Final = Names(_DROPPED, _FAMILIES)
"""What is left out of every head, and of one whose headers of ours are not believed."""

NOT_FOREIGN: Final = Names(_DROPPED | {OURS}, (*_FAMILIES, OURS))
_TYPE: Final = b"content-type"
_TYPES: Final = Names((_TYPE,), b"")
_JUDGED: Final = Names((_TYPE, b"connection"), b"")

_INERT: Final = re.compile(
    rb"(?:application/(?:json|jsonl|x-ndjson|problem\+json|octet-stream|x-protobuf|msgpack)"
    rb"|text/(?:event-stream|plain|csv)|audio/[a-z0-9.+-]+|video/[a-z0-9.+-]+"
    rb"|image/(?:png|jpeg|webp|gif))[ \t]*(?:;[^,]*)?",
    re.IGNORECASE,
)
"""Types that no browser runs or shows as a page. No comma: it would begin another type, which wins
there. Source: https://fetch.spec.whatwg.org/#content-type-header.
"""


def fit_head(head: Head) -> Head:
    """Return a head without what it names as of this hop only, and with a type that is inert, if it
    has any; nothing else is left out yet.
    """
    told = head.select(_JUDGED)
    options = connection_options(told) - PLAIN_CONNECTION
    if options:
        head = Head([one for one in head.headers() if one[0] not in options])
    types = [value for name, value in told if name == _TYPE and _TYPE not in options]
    if not types or (len(types) == 1 and is_inert(types[0])):
        return head
    return head.replaced(_TYPES, (PLAIN,))


@lru_cache(maxsize=256)
def is_inert(value: bytes) -> bool:
    """Return whether no browser shows a `content-type` as a page, or runs it."""
    return _INERT.fullmatch(value) is not None
