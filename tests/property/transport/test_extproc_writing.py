from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.transport.grpc.extproc_writing import (
    MOST_PIECE,
    body_answers,
    body_passed,
    headers_answer,
    immediate,
    pick_answer,
    pick_body_answer,
    trailers_answer,
)
from tests.property.transport.extproc_messages import DESTINATION

NAMES = st.sampled_from([b"x-a", b"x-request-id", b"x" * 130])
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=200)), max_size=4)
REMOVED = st.lists(NAMES, max_size=3).map(tuple)
ENDPOINTS = st.lists(st.sampled_from([b"10.0.0.1:80", b"[::1]:8000"]), min_size=1, max_size=9).map(
    b",".join
)
SIDES = st.sampled_from(["request", "response"])


def headers_of(mutation: Any) -> list[tuple[bytes, bytes]]:
    assert {one.append_action for one in mutation.set_headers} <= {2}
    return [(one.header.key.encode(), one.header.raw_value) for one in mutation.set_headers]


def check_pick(answer: wire.ProcessingResponse, name: str, given_: tuple[Any, Any, bytes]) -> Any:
    headers, removed, endpoint = given_
    common = getattr(answer, name).response
    reported = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
    assert answer.WhichOneof("response") == name
    assert common.clear_route_cache
    assert reported.string_value == endpoint.decode()
    assert headers_of(common.header_mutation) == [(DESTINATION.encode(), endpoint), *headers]
    assert list(common.header_mutation.remove_headers) == [one.decode() for one in removed]
    return common


@given(HEADERS, REMOVED, ENDPOINTS, st.none() | st.binary(max_size=300))
def test_a_pick_reads_as_it_was_meant(
    headers: Any, removed: Any, endpoint: bytes, body: bytes | None
) -> None:
    asked = headers, removed, endpoint

    bare = wire.ProcessingResponse.FromString(pick_answer(*asked))
    whole = wire.ProcessingResponse.FromString(pick_body_answer(*asked, body))

    check_pick(bare, "request_headers", asked)
    common = check_pick(whole, "request_body", asked)
    assert common.HasField("body_mutation") == (body is not None)
    assert common.body_mutation.body == (body or b"")


@given(SIDES, HEADERS)
def test_headers_that_go_on_read_as_they_were_meant(side: Any, headers: Any) -> None:
    answer = wire.ProcessingResponse.FromString(headers_answer(side, headers))

    name = f"{side}_headers"
    assert answer.WhichOneof("response") == name
    assert headers_of(getattr(answer, name).response.header_mutation) == headers
    assert not answer.HasField("dynamic_metadata")


@given(SIDES, st.integers(0, 3), st.integers(-1, 1), st.booleans())
def test_a_body_goes_back_whole_in_pieces_that_fit(
    side: Any, pieces: int, more: int, end: bool
) -> None:
    data = bytes(range(251)) * 800
    data = data[: max(0, min(len(data), pieces * MOST_PIECE + more))]

    answers = [wire.ProcessingResponse.FromString(one) for one in body_answers(side, data, end=end)]

    name = f"{side}_body"
    parts = [getattr(one, name).response.body_mutation.streamed_response for one in answers]
    assert {one.WhichOneof("response") for one in answers} == {name}
    assert b"".join(part.body for part in parts) == data
    assert all(len(part.body) <= MOST_PIECE for part in parts)
    assert [part.end_of_stream for part in parts] == [False] * (len(parts) - 1) + [end]


@given(SIDES)
def test_what_goes_on_as_it_is_changes_nothing(side: Any) -> None:
    body = wire.ProcessingResponse.FromString(body_passed(side))
    trailers = wire.ProcessingResponse.FromString(trailers_answer(side))

    assert body.WhichOneof("response") == f"{side}_body"
    assert trailers.WhichOneof("response") == f"{side}_trailers"
    assert not getattr(body, f"{side}_body").HasField("response")
    assert not getattr(trailers, f"{side}_trailers").HasField("header_mutation")


@given(st.integers(200, 599), HEADERS, st.binary(max_size=300), st.text(max_size=20))
def test_a_refusal_reads_as_it_was_meant(
    status: int, headers: Any, body: bytes, details: str
) -> None:
    answer = wire.ProcessingResponse.FromString(immediate(status, headers, body, details))

    found = answer.immediate_response
    assert (found.status.code, found.body, found.details) == (status, body, details)
    assert headers_of(found.headers) == headers
