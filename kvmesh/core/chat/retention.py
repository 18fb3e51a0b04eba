"""For how long clients wish the cache of a prompt kept, as OpenAI's and Anthropic's APIs say it.

It is a wish: what says nothing of it, of whatever type, counts as not said, and is the engine's to
judge. The compiled scan reads OpenAI's field of a chat as `retention_s` does
(kvmesh/native/bodies/scan.c).

Source (read 2026-11): the pages "Prompt caching" of both.
"""

import re
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE

SHORTLY_S: Final = 300
LONGEST_S: Final = 3600
"""No wish counts for longer."""

_RETENTIONS: Final = {
    b'"in_memory"': SHORTLY_S,
    b'"in-memory"': SHORTLY_S,
    b'"24h"': LONGEST_S,
}
_TTLS: Final = {None: SHORTLY_S, "5m": SHORTLY_S, "1h": LONGEST_S}
_NAME: Final = b'"cache_control"'
_VALUE: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(\{[^{}]*\})")


class _Control(msgspec.Struct):
    type: str
    ttl: str | None = None


_control: Final = msgspec.json.Decoder(_Control)


def retention_s(field: msgspec.Raw) -> int:
    """Return how many seconds a `prompt_cache_retention` asks for, 0 for none."""
    return _RETENTIONS.get(bytes(field), 0)


def cache_control_s(body: bytes) -> int:
    """Return how many seconds a body of Anthropic's asks for, 0 for none: the last `cache_control`
    that stands in it. O(bytes) behind that.
    """
    # Within a string quotes are escaped: a name that is found is one.
    at = body.rfind(_NAME)
    found = None if at < 0 else _VALUE.match(body, at + len(_NAME))
    if found is None:
        return 0
    try:
        said = _control.decode(found[1])
    except UNREADABLE:
        return 0
    return _TTLS.get(said.ttl, 0) if said.type == "ephemeral" else 0
