"""Tests of what is answered to requests that are too large."""

from kvmesh.core.prompts.json_size import JsonSize
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.refusals import why_too_much

LIMITS = HttpLimits(max_body_bytes=9, max_headers=8, max_header_bytes=7, max_body_items=6)


def test_a_body_may_hold_exactly_as_much_as_the_limit_says() -> None:
    size = JsonSize()
    size.feed(b'{"a": [[], "b"]')
    assert why_too_much(size, LIMITS) is None

    size.feed(b", 1, 2, 3")
    assert size.items == 5
    size.feed(b", [], {}")
    found = why_too_much(size, LIMITS)

    assert found is not None
    assert found.code == "too_many_items"
