"""Tests of what is read of a prompt that is too long to be read whole."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.app.prompts import beginning
from kvmesh.app.prompts.beginning import beginning_of, cut_string
from kvmesh.core.chat.inference import InferenceRequest
from kvmesh.transport.http.openai import ENDPOINTS, PASSTHROUGH, parse_request

CHAT = ENDPOINTS["/v1/chat/completions"]
TEXT = ENDPOINTS["/v1/completions"]
RESPONSES = ENDPOINTS["/v1/responses"]


@pytest.fixture(autouse=True)
def _reads_a_hundred_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "MOST_READ_BYTES", 100)


def parsed(body: object, endpoint: object = CHAT) -> InferenceRequest:
    assert endpoint in ENDPOINTS.values()
    return parse_request(json.dumps(body).encode(), endpoint)  # type: ignore[arg-type]


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_prompt_that_fits_stays_as_it_is() -> None:
    request = parsed({"messages": [said("hello")]})

    assert beginning_of(CHAT, request) == (request, 0)
    assert beginning_of(PASSTHROUGH, request) == (request, 0)


def test_a_chat_is_cut_between_messages() -> None:
    messages = [said("one"), said("two"), said("x" * 200), said("four")]
    request = parsed({"messages": messages})

    kept, rest = beginning_of(CHAT, request)

    assert msgspec.json.decode(kept.messages) == messages[:2]
    assert rest == len(memoryview(request.messages)) - len(memoryview(kept.messages))


def test_of_a_batch_the_first_text_and_all_token_ids_are_read() -> None:
    ids = list(range(100))
    request = parsed({"prompt": ["y" * 300, "z" * 50, ids]}, TEXT)

    kept, _ = beginning_of(TEXT, request)

    first, *others = msgspec.json.decode(kept.prompt)
    assert first == "y" * 99
    assert others == [ids]
    short, _ = beginning_of(TEXT, parsed({"prompt": ["y", "z" * 300]}, TEXT))
    assert bytes(short.prompt) == b'["y"]'


def test_token_ids_are_read_all_of_them() -> None:
    request = parsed({"prompt": list(range(200))}, TEXT)

    kept, rest = beginning_of(TEXT, request)

    assert bytes(kept.prompt) == bytes(request.prompt)
    assert rest == 0


def test_a_text_of_the_responses_api_is_cut_in_the_middle() -> None:
    kept, rest = beginning_of(RESPONSES, parsed({"input": "w" * 300}, RESPONSES))

    assert msgspec.json.decode(kept.input) == "w" * 99
    assert rest == 302 - 101


@given(st.text(max_size=80), st.booleans(), st.integers(1, 400))
def test_a_cut_string_is_a_prefix_of_the_whole(text: str, ascii_only: bool, place: int) -> None:
    whole = json.dumps(text, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        msgspec.json.decode(whole)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return  # lone surrogates are no text

    cut = cut_string(whole[: min(place, len(whole) - 1)])

    assert text.startswith(msgspec.json.decode(cut))


def test_a_cut_loses_few_bytes() -> None:
    escapes = json.dumps("\U0001f600\n\\" * 50).encode()

    for place in range(100, len(escapes)):
        cut = cut_string(escapes[:place])
        msgspec.json.decode(cut)
        assert place - len(cut) < 64
