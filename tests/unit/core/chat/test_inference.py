"""Tests of what routing reads of a body."""

import msgspec
import pytest

from kvmesh.bounds import MAX_CHOICES, MAX_PRIORITY, MAX_TOKENS
from kvmesh.core.chat.chat import ChatBody, JsonObject
from kvmesh.core.chat.inference import (
    InferenceRequest,
    chat_fields,
    decode_request,
    field_of,
    read_chat,
)


def test_a_chat_is_decoded_with_its_messages() -> None:
    said = b'[{"role":"user","content":"hi \xc3\xa9"}]'
    body = b'{"model":"m","messages":%b,"tools":[1],"max_tokens":5}' % said

    chat = read_chat(body)

    assert chat is not None
    assert chat.messages == [{"role": "user", "content": "hi é"}]
    assert (chat.model, chat.output_limit, bytes(chat.tools)) == ("m", 5, b"[1]")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{}",
        b'{"messages":null}',
        b'{"messages":[1]}',
        b'{"messages":[],"n":0}',
        b'{"messages":[],"max_tokens":-1}',
        b'{"messages":[{"content":"\xff"}]}',
        b'{"messages":[],"model":' + b"[" * 100_000,
    ],
    ids=["cut", "none", "null", "no objects", "n", "limit", "no UTF-8", "deep"],
)
def test_a_chat_with_something_wrong_is_left_to_others(body: bytes) -> None:
    assert read_chat(body) is None


def test_bytes_that_are_no_utf_8_are_refused_in_what_is_skipped() -> None:
    with pytest.raises(UnicodeDecodeError):
        decode_request(b'{"model":"m","other":["\xff"]}')


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (InferenceRequest(), None),
        (InferenceRequest(max_tokens=0.0), 0),
        (InferenceRequest(max_tokens=9.0, max_output_tokens=7.5), 7),
        (InferenceRequest(max_tokens=9.0, max_completion_tokens=5.0), 5),
        (InferenceRequest(max_tokens=1e300), MAX_TOKENS),
    ],
)
def test_the_newest_of_three_limits_counts(request_: InferenceRequest, limit: int | None) -> None:
    assert request_.output_limit == limit


def test_choices_and_urgency_are_within_bounds() -> None:
    assert (InferenceRequest().choices, InferenceRequest().urgency) == (1, 0)
    assert InferenceRequest(n=10**9).choices == MAX_CHOICES
    assert InferenceRequest(priority=7).urgency == -7
    assert InferenceRequest(priority=-(10**9)).urgency == MAX_PRIORITY


def test_what_reaches_a_template_is_decoded() -> None:
    said: list[JsonObject] = [{"role": "user", "content": "hi"}]
    bare = decode_request(b'{"model":"m"}')
    full = decode_request(b'{"tools":[{"a":1}],"reasoning_effort":2,"tool_choice":null}')

    assert chat_fields(said, bare) == ChatBody(said)
    assert chat_fields(said, full) == ChatBody(said, tools=[{"a": 1}], reasoning_effort=2.0)


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [(msgspec.Raw(b'{"a":1}'), {"a": 1}), (msgspec.Raw(), None), ("read already", "read already")],
)
def test_a_raw_field_is_what_it_holds(raw: object, wanted: object) -> None:
    assert field_of(raw) == wanted
