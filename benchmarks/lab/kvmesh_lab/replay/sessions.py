"""How a request names its session, in the headers of one client or another."""

from collections.abc import Mapping
from typing import Final

import xxhash

from kvmesh_lab.replay.options import SessionHeaders
from kvmesh_lab.traces.trace import TraceRequest

_OWN_AND_PARENT: Final[Mapping[SessionHeaders, tuple[bytes, bytes]]] = {
    "kvmesh": (b"x-kvmesh-program", b"x-kvmesh-program-parent"),
    "dynamo": (b"x-dynamo-session-id", b"x-dynamo-parent-session-id"),
    "opencode": (b"x-session-id", b"x-parent-session-id"),
}


def session_headers(
    style: SessionHeaders, request: TraceRequest, salt: str
) -> list[tuple[bytes, bytes]]:
    """Return the headers that name a request's session, and the one it is part of if it has a
    parent; none for a request without a session. Sessions of another `salt` have other names.
    """
    if style == "none" or not request.session:
        return []
    own, program = _name(request.session, salt), _name(request.program or request.session, salt)
    if style == "claude-code":
        agent = [(b"x-claude-code-agent-id", own)] if request.parent else []
        return [(b"x-claude-code-session-id", program), *agent]
    name, parent = _OWN_AND_PARENT[style]
    return [(name, own), (parent, program)] if request.parent else [(name, own)]


def _name(session: str, salt: str) -> bytes:
    """Return a name that any header may hold: sessions of a trace are any text."""
    return f"session-{xxhash.xxh3_64_hexdigest(f'{salt}/{session}'.encode())}".encode()
