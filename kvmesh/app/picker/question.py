"""The head of a request that a gateway asks about: checked, and put in HTTP's own words."""

import re
from typing import Final

import msgspec

from kvmesh.core.routing.choice.split_sidecars import RESERVED
from kvmesh.transport.grpc.extproc_messages import ENDPOINT, SERVED, SUBSET, RequestHeaders
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.refusals import body_too_long, head_too_large
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Header
from kvmesh.transport.http.wire.problem import Problem

_SPOOFED: Final = frozenset(name.encode() for name in (ENDPOINT, SERVED, SUBSET)) | RESERVED
"""What a client says of endpoints is never believed, and never passed on: neither to the gateway
nor to a worker's sidecar.
"""

_DROPPED: Final = _SPOOFED | {b"content-length", b"transfer-encoding"}
_REMOVED: Final = (_SPOOFED - {ENDPOINT.encode()}) | {b"accept-encoding"}
"""The endpoint is overwritten. A compressed answer could not be read for its tokens."""

_TARGET: Final = re.compile(rb"/[!-\"$-~]*|\*")
"""Neither a fragment nor anything but visible ASCII."""
_MOST_DIGITS: Final = 18


class RequestHead(msgspec.Struct):
    """A request without its body. `removed` are names of headers that must not go on.

    `bodiless`: no body is told. `problem`: why it is refused.
    """

    request: Request
    removed: tuple[bytes, ...]
    subset: tuple[str, ...] | None
    bodiless: bool = False
    problem: Problem | None = None


def read_head(message: RequestHeaders, peer: str, limits: HttpLimits) -> RequestHead:
    """Return the head of a request; one that cannot be served has a `problem`."""
    given = message.headers
    pseudo: dict[bytes, bytes] = {}
    headers: list[Header] = []
    removed: dict[bytes, None] = {}
    size, too_long = 0, False
    for header in given:
        name, value = header
        size += len(name) + len(value)
        if name[:1] == b":":
            pseudo[name] = value
            continue
        if name in _REMOVED:
            removed[name] = None
        if name not in _DROPPED:
            headers.append(header)
        elif name == b"content-length":
            too_long = too_long or _is_longer(value, limits.max_body_bytes)
    problem = None
    if size > limits.max_header_bytes or len(given) > limits.max_headers:
        problem = head_too_large(limits)
    elif too_long:
        problem = body_too_long(limits)
    method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not (method.isalpha() and _TARGET.fullmatch(target)):
        text = f"{method[:32]!r} {target[:128]!r} is no method and path"
        problem, method, target = Problem(400, text, "malformed_request"), b"GET", b"/"
    if (host := pseudo.get(b":authority")) is not None:
        headers.append((b"host", host))
    request = Request(method.decode("ascii"), target, headers)
    request.vetted = True  # which pages may send it is the gateway's to say
    request.client = peer
    request.secure = pseudo.get(b":scheme") == b"https"
    return RequestHead(request, tuple(removed), message.subset, problem=problem)


def _is_longer(length: bytes, most: int) -> bool:
    """Return whether a content-length says more than `most` bytes."""
    return length.isdigit() and (len(length) > _MOST_DIGITS or int(length) > most)
