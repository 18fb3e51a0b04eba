"""What is made of a picker's answers, by the messages that Envoy's own definitions encode."""

from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from google.protobuf import json_format

from kvmesh_lab.conformance.case import Broken, UnreachableError
from kvmesh_lab.conformance.exchange import (
    Asked,
    Received,
    picked,
    picked_twice,
    read_endpoint,
    same_body,
)
from kvmesh_lab.conformance.wire import DESTINATION, Ended, Modes, read_answer


def headers_answer(header: str | None, metadata: str | None) -> bytes:
    """Return an answer to request headers with a pick in either place."""
    answer = proto.ProcessingResponse()
    answer.request_headers.response.clear_route_cache = True
    if header is not None:
        value = base_pb2.HeaderValue(key=DESTINATION, raw_value=header.encode())
        option = base_pb2.HeaderValueOption(header=value)
        answer.request_headers.response.header_mutation.set_headers.append(option)
    if metadata is not None:
        json_format.ParseDict({"envoy.lb": {DESTINATION: metadata}}, answer.dynamic_metadata)
    return bytes(answer.SerializeToString())


def body_answer(data: bytes, *, end: bool, side: str = "request") -> bytes:
    """Return a piece of a body that is streamed back."""
    answer: Any = proto.ProcessingResponse()
    piece = getattr(answer, f"{side}_body").response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = data, end
    return bytes(answer.SerializeToString())


def received(*messages: bytes) -> Received:
    found = Received("request")
    for message in messages:
        found.take(read_answer(message))
    return found


def test_a_pick_is_read_from_either_place() -> None:
    assert picked(received(headers_answer("10.0.0.1:80, 10.0.0.2:80", None))) == (
        "10.0.0.1:80",
        "10.0.0.2:80",
    )
    assert picked(received(headers_answer(None, "10.0.0.1:80"))) == ("10.0.0.1:80",)


@pytest.mark.parametrize(
    ("header", "metadata", "said"),
    [
        ("10.0.0.1:80", None, "the metadata envoy.lb None"),
        ("10.0.0.1:80", "10.0.0.2:80", "'10.0.0.2:80'"),
        (None, "10.0.0.1:80", "set 0 times"),
    ],
)
def test_a_pick_must_stand_in_both_places(
    header: str | None, metadata: str | None, said: str
) -> None:
    with pytest.raises(Broken, match=said):
        picked_twice(received(headers_answer(header, metadata)))


def test_no_pick_at_all_is_said() -> None:
    with pytest.raises(Broken, match="neither as header nor in the metadata"):
        picked(received(headers_answer(None, None)))


@pytest.mark.parametrize("text", ["[2001:db8::1]:8000", "10.0.0.1:65535"])
def test_an_endpoint_is_an_address_and_a_port(text: str) -> None:
    assert read_endpoint(f" {text} ") == text


@pytest.mark.parametrize(
    "text", ["", "host:80", "10.0.0.1", "10.0.0.1:0", "1.2.3.4:99999", "::1:80"]
)
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(Broken, match="not of the form ip:port"):
        read_endpoint(text)


def test_a_body_before_the_headers_is_out_of_order() -> None:
    with pytest.raises(Broken, match="not answered first"):
        received(body_answer(b"x", end=True))


def test_a_second_end_is_out_of_order() -> None:
    one = body_answer(b"x", end=True)

    with pytest.raises(Broken, match="after its end"):
        received(headers_answer("10.0.0.1:80", None), one, one)


def test_an_answer_to_the_other_side_is_out_of_order() -> None:
    with pytest.raises(Broken, match="answer to the response"):
        received(headers_answer("10.0.0.1:80", None), body_answer(b"", end=True, side="response"))


def test_a_body_that_was_written_anew_is_the_same_if_its_content_is() -> None:
    sent = b'{"model": "a",   "messages": []}'
    pick = headers_answer("10.0.0.1:80", None)

    anew = received(pick, body_answer(b'{"model":"b","messages":[]}', end=True))
    less = received(pick, body_answer(b'{"model":"b"}', end=True))
    half = received(pick, body_answer(sent[:9], end=True))

    assert same_body(sent, anew) == "the picker rewrote the JSON"
    with pytest.raises(Broken, match="without \\['messages'\\]"):
        same_body(sent, less)
    with pytest.raises(Broken, match="damaged: 9 of 32 bytes"):
        same_body(sent, half)


def test_bytes_that_are_no_answer_are_said() -> None:
    with pytest.raises(Broken, match="no ProcessingResponse"):
        read_answer(b"\xff\xff\xff")
    with pytest.raises(Broken, match="answers nothing"):
        read_answer(b"")


def test_metadata_that_json_cannot_hold_is_said() -> None:
    answer = proto.ProcessingResponse()
    answer.request_headers.response.clear_route_cache = True
    answer.dynamic_metadata.fields["envoy.lb"].number_value = float("nan")

    with pytest.raises(Broken, match="metadata cannot be read"):
        read_answer(answer.SerializeToString())


def test_a_picker_that_cannot_be_reached_is_told_from_one_that_ends_the_call() -> None:
    away, ended = Received("request"), Received("request")
    away.take(Ended(14, "refused"))
    ended.take(Ended(13, "oops"))

    with pytest.raises(UnreachableError):
        picked(away)
    with pytest.raises(Broken, match="oops"):
        picked(ended)


def test_a_gateway_says_what_it_sends_in_its_first_message_only() -> None:
    messages = Asked(body=b"12345", piece=2, subset=("10.0.0.1:80",)).messages()
    first, *rest = [proto.ProcessingRequest.FromString(one) for one in messages]

    hint = first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    assert list(hint[f"{DESTINATION}-subset"]) == ["10.0.0.1:80"]
    assert first.protocol_config.request_body_mode == 4
    assert not first.request_headers.end_of_stream
    assert [one.request_body.body for one in rest] == [b"12", b"34", b"5"]
    assert [one.request_body.end_of_stream for one in rest] == [False, False, True]
    assert not any(one.HasField("protocol_config") for one in rest)


def test_a_body_that_is_not_sent_leaves_headers_without_an_end() -> None:
    (only,) = Asked(body=b"12345", modes=Modes(request="NONE")).messages()

    assert not proto.ProcessingRequest.FromString(only).request_headers.end_of_stream
