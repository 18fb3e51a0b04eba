"""The compiled scan of a body against its model, the strict parser and an engine's `json.loads`.

The compiled scan may leave a body to the strict parser; what it answers must be the same.
"""

import json
from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh import _native
from kvmesh._native import scan_tokens
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.tokenizer import ByteTokenizer
from kvmesh.core.chat.inference import read_chat
from kvmesh.core.chat.prompt_form import PLAIN
from kvmesh.core.prompts.segment_cache import unpack_ids
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS, parse_request
from kvmesh.transport.http.server.request import Request
from tests.property.support.bodies import anything, chats, damaged
from tests.reference.prompts import body_scan as naive
from tests.reference.prompts.body_scan import agrees, compiled_scan

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETION = ENDPOINTS["/v1/completions"]
READER = PromptReader(ByteTokenizer(), 16)

texts = st.text(st.characters(codec="utf-8"))
usual_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "critic"]), "content": texts}
    ),
    min_size=1,
)
usual_fields = st.fixed_dictionaries(
    {"model": st.text(st.characters(codec="utf-8"), max_size=20), "messages": usual_messages},
    optional={
        "stream": st.booleans(),
        "max_tokens": st.integers(0, 10**6),
        "n": st.just(1),
        "temperature": st.floats(0, 2),
        "stop": st.none() | st.lists(texts),
        "user": texts,
        "stream_options": st.just({"include_usage": True}),
    },
)


def same(body: bytes) -> None:
    """Whatever the compiled scan answers, the naive one does, too."""
    found = scan_tokens(body)
    assert found is None or found == naive.scan_tokens(body)
    assert agrees(body)


@given(chats())
@example(b'{"messages":[{"role":"user","content":"a","role":"system","content":"b"}]}')
@example(b'{"messages":[{"role":"user","content":"a"}],"tools":[{"a":1,"a":2}]}')
@example(b'{"messages":[{"role":"user","content":"a","name":" "}],"tools":[{"a":"\\u0001\\/"}]}')
@example(b'{"messages":[{"role":"user","content":"a"}],"tools":[{"a":[-0.0,0.5,12.25,0.0001]}]}')
@example(b'{"model":"a","model":null,"messages":[{}],"max_tokens":5,"max_tokens":null}')
@example(b'{"prompt":"a","prompt":["b"]}')
@example(b'{"messages":null,"messages":[{"role":"user","content":"a"}]}')
@example(b'{"messages":[{"role":"\\u0075ser","content":"a"}]}')
@example(b'{"model":"%b","model":"m"}' % (b"m" * 513))
def test_chats_are_read_as_by_the_naive_scan(body: bytes) -> None:
    same(body)


@given(chats() | damaged())
def test_messages_are_found_where_they_stand(body: bytes) -> None:
    scanned = _native.scan(body, True)
    if scanned is None:
        return
    found, others = scanned.find_messages({}, 7, b"")
    kept = {place: (body[begin:end], number) for number, place, begin, end in others}
    fields = json.loads(body)
    messages = [json.loads(body[begin:end]) for *_, begin, end in others]
    assert found == [None] * scanned.count
    assert repr(messages) == repr(fields["messages"])
    assert repr(json.loads(scanned.rest)) == repr({**fields, "messages": []})
    again, unknown = scanned.find_messages(kept, 7, b"")
    assert [messages[number or 0] for number in again] == messages
    assert not unknown


@given(anything)
def test_any_fields_are_read_as_by_the_naive_scan(body: bytes) -> None:
    same(body)


@given(damaged())
def test_damaged_bodies_are_read_as_by_the_naive_scan(body: bytes) -> None:
    same(body)


@given(st.binary(max_size=60) | st.text('{}[]",:\\ue\t0.', max_size=20).map(str.encode))
def test_bytes_are_read_as_by_the_naive_scan(body: bytes) -> None:
    same(body)


@given(chats() | anything)
def test_what_is_scanned_is_what_the_router_reads(body: bytes) -> None:
    """The request and the prompt's ids, as today's way from the body to both has them."""
    scanned = compiled_scan(body)
    if scanned is None:
        return
    chat = read_chat(body) if scanned.prompt is None else None
    endpoint = COMPLETION if chat is None else CHAT
    parsed = chat or parse_request(body, ENDPOINTS["/v1/models"])
    assert (parsed.model or "", bool(parsed.stream)) == (scanned.model, scanned.streams)
    assert (parsed.output_limit or 0, parsed.urgency) == (scanned.limit, scanned.urgency)
    assert (parsed.choices, parsed.lora_path) == (1, None)
    assert (parsed.cache_salt or "") == scanned.salt
    ids = scan_tokens(body)
    if ids is not None:
        packed = READER._pack(
            Request("POST", b"/", [], body), endpoint, parsed, scanned.prompt or "", PLAIN
        ).ids
        assert unpack_ids(ids) == unpack_ids(packed)


@given(chats() | anything)
def test_what_the_strict_parser_refuses_is_not_scanned(body: bytes) -> None:
    scanned = compiled_scan(body)
    try:
        parse_request(body, ENDPOINTS["/v1/models"])
    except RequestError:
        assert scanned is None


@given(chats() | anything)
def test_keys_that_come_twice_are_read_as_engines_read_them(body: bytes) -> None:
    scanned = compiled_scan(body)
    if scanned is None:
        return
    read = json.loads(body)
    assert (read.get("model") or "") == scanned.model
    assert bool(read.get("stream")) == scanned.streams
    if scanned.prompt is not None:
        assert read.get("prompt") == scanned.prompt
    limits = (read.get(f"max_{kind}tokens") for kind in ("completion_", "output_", ""))
    limit = next((one for one in limits if one is not None), 0)
    assert scanned.limit == min(limit, 2**31 - 1)
    if scanned.messages is not None:
        assert scanned.messages == [(one["role"], one["content"]) for one in read["messages"]]


@given(usual_fields, st.booleans(), st.sampled_from([None, 2]))
def test_a_usual_chat_is_never_left_to_the_strict_parser(
    fields: dict[str, Any], escaped: bool, indent: int | None
) -> None:
    body = json.dumps(fields, ensure_ascii=escaped, indent=indent).encode()

    scanned = compiled_scan(body)

    assert scanned is not None
    assert scanned.model == fields["model"]
    assert scanned.limit == fields.get("max_tokens", 0)
    assert scanned.messages == [(one["role"], one["content"]) for one in fields["messages"]]
    assert scan_tokens(body) == naive.scan_tokens(body) is not None


@given(st.text(st.characters(codec="utf-8"), max_size=80), st.booleans())
def test_a_text_prompt_is_its_bytes(prompt: str, escaped: bool) -> None:
    body = json.dumps({"prompt": prompt}, ensure_ascii=escaped).encode()

    assert scan_tokens(body) == array("I", list(prompt.encode())).tobytes()


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'In °C: "now"\n',
            "parameters": {"type": "object", "properties": {"a": {"minimum": 0.5, "max": -3}}},
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": "auto"},
        {"documents": [{"title": "a", "text": "b"}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "21"}]},
        {"messages": [{"role": "user", "name": "bob", "content": [{"type": "text", "text": "é"}]}]},
        {"messages": [{"role": "user", "content": ["a", {"text": "b"}]}]},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"reasoning_effort": "low", "chat_template_kwargs": {"thinking": True}},
    ],
)
def test_agents_are_not_left_to_the_tokenizer(fields: dict[str, Any]) -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    body = json.dumps(said, ensure_ascii=False).encode()

    assert scan_tokens(body) == naive.scan_tokens(body) is not None


@pytest.mark.parametrize("last", ["x", "é", "\n", '"', "😀"])
def test_texts_of_every_length_are_read_whole(last: str) -> None:
    for size in (*range(70), 4095, 100_000):
        text = "a" * size + last + "b" * (size % 17)
        said = {"messages": [{"role": "user", "content": text}]}
        body = json.dumps(said, ensure_ascii=False).encode()

        assert compiled_scan(body) is not None
        assert agrees(body)
        assert scan_tokens(body) == naive.scan_tokens(body) is not None


@pytest.mark.parametrize("byte", [0x00, 0x1F, 0x80, 0xC0, 0xED, 0xF5, 0xFF])
def test_a_byte_that_no_string_may_have_is_found_anywhere(byte: int) -> None:
    for place in range(0, 40, 3):
        text = b"a" * place + bytes([byte]) + b"a" * (40 - place)
        for body in (
            b'{"prompt":"%b"}' % text,
            b'{"prompt":"","other":["%b"]}' % text,
            b'{"prompt":"","%b":1}' % text,
        ):
            assert compiled_scan(body) is None
            assert naive.scan_body(body) is None


@pytest.mark.parametrize(("depth", "scanned"), [(63, True), (64, False)])
def test_nesting_is_followed_so_far(depth: int, scanned: bool) -> None:
    body = b'{"prompt":"","x":' + b"[" * depth + b"]" * depth + b"}"

    assert (compiled_scan(body) is not None) is scanned
    assert naive.scan_body(body) is not None


@pytest.mark.parametrize(
    "message",
    [
        "{}",
        '{"name":"x"}',
        '{"name":"x","tool_call_id":"y","tool_calls":[{}]}',
        '{"role":"","content":"","name":"\\\\"}',
        '{"content":["",""],"tool_calls":[{"a":"\\u0001"}]}',
    ],
)
def test_many_messages_of_little_text_have_room(message: str) -> None:
    """Markers are more than the bytes that they stand for: the sanitizers watch where they go."""
    body = b'{"messages":[%b],"tools":[{}]}' % ",".join([message] * 3000).encode()

    assert scan_tokens(body) == naive.scan_tokens(body) is not None


def test_nesting_does_not_end_the_process() -> None:
    for opening in (b"[", b'{"a":', b'{"messages":[{"content":['):
        assert compiled_scan(b'{"prompt":"","x":' + opening * 100_000) is None
        assert scan_tokens(b'{"messages":[{"content":' + opening * 100_000) is None


def test_the_body_may_be_any_buffer() -> None:
    body = b'{"prompt":"abc"}'
    for one in (bytearray(body), memoryview(b"xx" + body)[2:]):
        assert scan_tokens(one) == scan_tokens(body)


def test_what_is_no_buffer_is_an_error() -> None:
    read: Any = _native.scan_tokens
    for argument in ("text", None, 1, [1]):
        with pytest.raises(TypeError):
            read(argument)
    with pytest.raises((BufferError, TypeError)):
        read(memoryview(b"abcd")[::2])
