"""Which session a request is part of, as its client names it: for meta-routers."""

from typing import Final

from kvmesh._native import Names
from kvmesh.app.prompts.turn_names import DYNAMO_PARENT, OPENCODE_PARENT, PARENT
from kvmesh.app.prompts.wish_values import NO_EXTENSION
from kvmesh.core.chat.inference import Extension
from kvmesh.core.routing.sessions import SESSION, SESSION_HEADERS, session_key
from kvmesh.transport.http.server.request import Request

PARENT_HEADERS: Final = (PARENT, DYNAMO_PARENT, OPENCODE_PARENT)
"""Headers that name the session which a sub-agent's is part of."""

_KEY_BYTES: Final = 16


class SessionNames:
    """Reads the sessions of requests in one pass over the headers: the first of the configured
    header, the body's `kvmesh.session` or `kvmesh.program`, and `SESSION_HEADERS` counts.
    """

    def __init__(self, tenant_header: str) -> None:
        self._own = SESSION
        self._tenant = tenant_header.encode()
        self.headers: Final = (self._own, self._tenant, *SESSION_HEADERS, *PARENT_HEADERS)
        self._asked = Names(self.headers, b"")

    def read(self, request: Request, extension: Extension = NO_EXTENSION) -> tuple[int, ...]:
        """Return the key of the request's session and of the one it is part of; () for none.

        Keys of two tenants differ, whatever they call their sessions.
        """
        given = dict(request.head.select(self._asked))
        if not given and extension.session is None and extension.program is None:
            return ()
        tenant = _first(given, (self._tenant,))
        own = _first(given, (self._own,)) or extension.session or extension.program
        own = own or _first(given, SESSION_HEADERS)
        parent = _first(given, PARENT_HEADERS)
        if parent and parent != own:
            return (_key(own, tenant), _key(parent, tenant)) if own else (_key(parent, tenant),)
        return (_key(own, tenant),) if own else ()


def _key(name: str, tenant: str) -> int:
    return int(session_key(name, tenant)[:_KEY_BYTES], 16)


def _first(given: dict[bytes, bytes], names: tuple[bytes, ...]) -> str:
    for name in names:
        if name in given and (value := given[name].decode("latin-1").strip()):
            return value
    return ""
