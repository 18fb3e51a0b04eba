"""What is answered to a request that is larger than this server takes."""

from kvmesh.core.prompts.json_size import NUMBERS_A_VALUE, JsonSize
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.wire.headers import MAX_FRAMING_BYTES
from kvmesh.transport.http.wire.problem import Problem


def head_too_large(limits: HttpLimits) -> Problem:
    """Return the answer to a head of too many headers or bytes."""
    text = f"head exceeds {limits.max_headers} headers or {limits.max_header_bytes} bytes"
    return Problem(431, text, code="headers_too_large")


def body_too_long(limits: HttpLimits) -> Problem:
    """Return the answer to a body of too many bytes."""
    return Problem(413, f"body exceeds {limits.max_body_bytes} bytes", code="body_too_large")


def framing_too_long() -> Problem:
    """Return the answer to a chunked body that goes on without content."""
    text = f"chunk extensions or trailers exceed {MAX_FRAMING_BYTES} bytes: send content"
    return Problem(431, text, code="framing_too_large")


def why_too_much(size: JsonSize, limits: HttpLimits) -> Problem | None:
    """Return the answer to a body of which `size` was counted; None: it may hold so much."""
    if size.items > limits.max_body_items:
        text = (
            f"the body has more than {limits.max_body_items} values (objects, lists, strings; "
            f"{NUMBERS_A_VALUE} numbers count as one): send fewer"
        )
        return Problem(413, text, code="too_many_items")
    if size.deepest > limits.max_body_depth:
        text = f"the body nests more than {limits.max_body_depth} objects and lists: flatten it"
        return Problem(413, text, code="nested_too_deeply")
    return None
