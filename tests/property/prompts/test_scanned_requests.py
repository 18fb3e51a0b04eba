"""What a meta-router knows of a request that is scanned is what it knows of one that is parsed."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.app.meta.bucket_reader import BucketReader
from kvmesh.app.meta.session_names import SessionNames
from kvmesh.core.buckets.buckets import BucketTable
from kvmesh.core.buckets.placing import RouterReplica
from kvmesh.core.members.membership import Membership
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS, read_request
from kvmesh.transport.http.server.request import Request

TEXTS = st.text(max_size=40) | st.sampled_from(["", "a" * 300, "é\n" * 200, "\0", '"\\', "\ud800"])
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={"content": TEXTS | st.none() | st.just([{"type": "text", "text": "part"}])},
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=6)},
    optional={
        "model": st.sampled_from(["m", "", "é"]),
        "stream": st.booleans() | st.none(),
        "cache_salt": TEXTS,
        "tools": st.sampled_from([None, [], [{"type": "function", "function": {"name": "f"}}]]),
        "prompt": TEXTS,
        "kvmesh": st.sampled_from([None, {}, {"bucket": "b"}, {"session": "s"}]),
        "max_tokens": st.integers(-1, 9),
        "n": st.integers(0, 2),
    },
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"x-kvmesh-bucket", b"x-kvmesh-worker-id", b"x-kvmesh-session", b"x-a"]),
        st.sampled_from([b"", b"one", b"two ", b"\1"]),
    ),
    max_size=3,
)


PATHS = st.sampled_from(["/v1/chat/completions", "/v1/completions"])


def told(read: Callable[[], object]) -> object:
    """Return what is known, or what is wrong with the request."""
    try:
        return read()
    except RequestError as error:
        return str(error)


@given(BODIES, HEADERS, st.integers(1, 2), st.booleans(), PATHS)
def test_a_scanned_request_is_known_as_a_parsed_one(
    body: dict[str, Any], headers: list[tuple[bytes, bytes]], buckets: int, rules: bool, path: str
) -> None:
    table = BucketTable(Membership())
    for number in range(buckets):
        table.set_replica(RouterReplica(f"b{number}/r", f"b{number}", "http://r"))
    reader = BucketReader(table, SessionNames("x-kvmesh-tenant"), rules=rules)
    endpoint = ENDPOINTS[path]
    request = Request("POST", path.encode(), headers, json.dumps(body).encode())

    def parsed() -> object:
        found = read_request(request, endpoint)
        return reader.read(request, endpoint, found), bool(found.stream)

    scanned = told(lambda: reader.scan(request, endpoint))

    assert scanned is None or scanned == told(parsed)
