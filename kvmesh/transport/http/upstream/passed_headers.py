"""What of an upstream's headers reaches a client.

A browser lets a response act for its whole origin, and the dashboard, its login and the operator's
other pages may share that of an answer. So nothing an engine sends may set a cookie, name another
address, open a password dialogue, change the origin's rules, or be shown as a page.
"""

import re
from typing import Final

from kvmesh.transport.http.wire.headers import Header, Headers, end_to_end

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
_DROPPED: Final = _MADE_HERE | _OF_THE_ORIGIN

_INERT: Final = re.compile(
    rb"(?:application/(?:json|jsonl|x-ndjson|problem\+json|octet-stream|x-protobuf|msgpack)"
    rb"|text/(?:event-stream|plain|csv)|audio/[a-z0-9.+-]+|video/[a-z0-9.+-]+"
    rb"|image/(?:png|jpeg|webp|gif))[ \t]*(?:;[^,]*)?",
    re.IGNORECASE,
)
"""Types that no browser runs or shows as a page. No comma: it would begin another type, which wins
there. Source: https://fetch.spec.whatwg.org/#content-type-header.
"""


def passed_headers(headers: Headers, *, ours: bool) -> list[Header]:
    """Return what is passed on of `headers` (lower-case names), without `ours` no x-kvmesh- one."""
    kept = [
        header
        for header in end_to_end(headers, _DROPPED)
        if not header[0].startswith(_FAMILIES) and (ours or not header[0].startswith(OURS))
    ]
    types = [value for name, value in kept if name == b"content-type"]
    if types and not (len(types) == 1 and _INERT.fullmatch(types[0])):
        kept = [header for header in kept if header[0] != b"content-type"]
        kept.append(PLAIN)
    kept.append(NOSNIFF)
    return kept
