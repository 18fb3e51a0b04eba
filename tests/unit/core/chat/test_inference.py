"""Tests of what routing reads of a body."""

import msgspec
import pytest

from kvmesh.bounds import MAX_CHOICES, MAX_PRIORITY, MAX_TOKENS
from kvmesh.core.chat.inference import (
    InferenceRequest,
    decode_request,
    extra_key_of,
    field_of,
    read_chat,
)


def test_a_chat_is_decoded_with_its_messages() -> None:
    said = b'[{"role":"user","content":"hi \xc3\xa9"}]'
    chat = read_chat(b'{"model":"m","messages":%b,"tools":[1],"max_tokens":5}' % said)

    assert chat is not None
    assert chat.messages == [{"role": "user", "content": "hi é"}]
    assert (chat.model, chat.output_limit, bytes(chat.tools)) == ("m", 5, b"[1]")


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


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [(msgspec.Raw(b'{"a":1}'), {"a": 1}), (msgspec.Raw(), None), ("read already", "read already")],
)
def test_a_raw_field_is_what_it_holds(raw: object, wanted: object) -> None:
    assert field_of(raw) == wanted


@pytest.mark.parametrize(
    ("said", "key"),
    [("null", ""), ('"a"', "a"), ('["b", "c"]', "b"), ("[]", ""), ("7", ""), ('{"a": 1}', "")],
)
def test_an_extra_key_is_a_text_or_the_first_of_a_list(said: str, key: str) -> None:
    parsed = decode_request(b'{"prompt": "x", "extra_key": %b}' % said.encode())

    assert parsed is not None
    assert extra_key_of(parsed) == key
