"""What of a worker's answers with status 200 is an answer, and what is not."""

import json
from typing import Any

import pytest

from kvmesh._native import EventStream
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.answer_check import (
    SURE,
    AnswerCheck,
    BadAnswer,
    Form,
    error_words,
    has_no_token,
    judge_start,
)
from kvmesh.core.members.answer_parts import MOST_ASKED

ASKED = b'{"model":"m","messages":[]}'
CHAT: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
STOPPED = {**CHAT, "choices": [{**CHAT["choices"][0], "finish_reason": "stop"}]}
TOKEN = b'data: {"model":"m","choices":[{"delta":{"content":"a"}}]}\n\n'
STOP = b'data: {"model":"m","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
NOTHING: dict[str, Any] = {
    "choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]
}
NO_TOKENS: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 0}
ERROR = {"message": "CUDA error", "type": "x", "code": 500}


def sickness_of(found: Usage | BadAnswer | None) -> str:
    return found.sickness if isinstance(found, BadAnswer) else ""


def whole(body: Any, form: Form = "chat", check: AnswerCheck | None = None) -> str:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return sickness_of((check or AnswerCheck(("m",))).judge_whole(form, data, ASKED))


def read(data: bytes) -> tuple[EventStream, bytes]:
    stream = new_event_stream()
    return stream, stream.feed(data)


def first(data: bytes, check: AnswerCheck | None = None) -> str:
    stream, events = read(data)
    return (check or AnswerCheck(("m",))).judge_first(events or data, stream, ASKED)


def end(data: bytes, check: AnswerCheck | None = None, form: Form = "chat") -> str:
    stream, _ = read(data)
    return (check or AnswerCheck(("m",))).judge_end(form, stream, stream.flush())


@pytest.mark.parametrize(
    ("body", "sickness"),
    [
        (STOPPED, ""),
        (CHAT, ""),
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\x8f\x01\xfe", "malformed"),
        (b"[1]", "malformed"),
        (json.dumps(STOPPED).encode()[:120], "malformed"),
        (b" <html></html>", "html"),
        ({"error": ERROR}, "error"),
        ({"error": "out of memory"}, "error"),
        ({"object": "error", **ERROR}, "error"),
        ({"type": "error", "x": 1}, "error"),
        ({"usage": {"prompt_tokens": "many"}, "error": ERROR}, "error"),
        ({"error": None, "id": "x"}, "malformed"),
        ({"choices": []}, "malformed"),
        ({**STOPPED, "error": None}, ""),
        ({**STOPPED, "usage": {"prompt_tokens": "many"}}, ""),
        ({"choices": {"0": "a dialect"}}, ""),
        ({**STOPPED, "model": ["m"]}, ""),
        ({**NOTHING, "usage": NO_TOKENS}, "no_tokens"),
        ({**NOTHING, "usage": {**NO_TOKENS, "completion_tokens": 1}}, ""),
        (NOTHING, ""),
        ({**NOTHING, "usage": {"prompt_tokens": 3}}, ""),
    ],
)
def test_a_whole_chat(body: Any, sickness: str) -> None:
    assert whole(body) == sickness


@pytest.mark.parametrize(
    "said",
    [
        {"finish_reason": "content_filter", "message": {"content": ""}},
        {"finish_reason": "own_word", "message": {"content": ""}},
        {"finish_reason": {"type": "abort"}, "message": {"content": ""}},
        {"finish_reason": "stop", "message": {"content": None, "tool_calls": [{}]}},
        {"finish_reason": "stop", "message": {"content": "it counts none"}},
        {"finish_reason": "stop", "message": [1]},
        {"finish_reason": "stop", "text": "it counts none"},
    ],
)
def test_no_token_is_missed_where_something_is_said_or_withheld(said: Any) -> None:
    assert whole({"choices": [said], "usage": NO_TOKENS}) == ""


def test_no_token_is_missed_where_none_was_asked_for() -> None:
    choice = {"text": "", "finish_reason": "length"}
    body = json.dumps({"choices": [choice], "usage": NO_TOKENS}).encode()

    def judged(asked: bytes) -> str:
        return sickness_of(AnswerCheck().judge_whole("completions", body, asked))

    assert judged(b'{"max_tokens":0}') == ""
    assert judged(b'{"max_tokens":null,"max_completion_tokens":0}') == ""
    assert (judged(b'{"max_tokens":1}'), judged(b"")) == ("no_tokens", "")


@pytest.mark.parametrize("size", [MOST_ASKED - 1_000, 10 * MOST_ASKED])
def test_a_long_request_is_not_read_again_and_no_verdict_rests_on_it(size: int) -> None:
    asked = json.dumps({"model": "m", "prompt": "x" * size, "max_tokens": 5}).encode()
    choice = {"text": "", "finish_reason": "stop"}
    silent = json.dumps({"model": "m", "choices": [choice], "usage": NO_TOKENS}).encode()
    other = json.dumps({**STOPPED, "model": "other"}).encode()
    check = AnswerCheck(("m",))
    for _ in range(SURE):
        check.judge_whole("chat", json.dumps(STOPPED).encode(), ASKED)

    found = [
        sickness_of(check.judge_whole("completions", silent, asked)),
        sickness_of(check.judge_whole("chat", other, asked)),
    ]

    assert found == (["no_tokens", "wrong_model"] if size < MOST_ASKED else ["", ""])
    assert whole(other, check=check) == "wrong_model"


@pytest.mark.parametrize(
    ("form", "body", "sickness"),
    [
        ("completions", {"choices": [{"text": "", "finish_reason": "stop"}]}, ""),
        ("completions", {"text": "no choices"}, "malformed"),
        ("messages", {"type": "message", "content": [], "stop_reason": "refusal"}, ""),
        ("messages", {"content": [], "stop_reason": "end_turn", "usage": None}, ""),
        (
            "messages",
            {"content": [], "stop_reason": "end_turn", "usage": {"output_tokens": 0}},
            "no_tokens",
        ),
        ("messages", {"type": "error", "error": ERROR}, "error"),
        ("responses", {"object": "response", "status": "queued", "output": []}, ""),
        ("responses", {"output": [], "status": "incomplete", "usage": {"output_tokens": 0}}, ""),
        (
            "responses",
            {"output": [], "status": "completed", "usage": {"output_tokens": 0}},
            "no_tokens",
        ),
        (
            "responses",
            {"object": "response", "status": "failed", "error": ERROR, "output": []},
            "error",
        ),
        ("embeddings", {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}}, ""),
        ("embeddings", {"data": [{}], "usage": {"completion_tokens": 0}}, ""),
        ("embeddings", {"embedding": [0.5]}, ""),
        ("embeddings", {"id": "x"}, "malformed"),
    ],
)
def test_a_whole_answer_of_another_api(form: Form, body: Any, sickness: str) -> None:
    assert whole(body, form) == sickness


def test_a_worker_that_names_what_it_announced_is_held_to_it() -> None:
    check = AnswerCheck(("m-large", "an-adapter"))
    other = {**STOPPED, "model": "other"}
    for _ in range(SURE):
        assert whole({**STOPPED, "model": "m-large"}, check=check) == ""

    assert whole(other, check=check) == "wrong_model"
    assert first(TOKEN.replace(b'"m"', b'"other"'), check) == "wrong_model"
    named = b'event: message_start\ndata: {"message":{"model":"other"}}\n\n'
    assert first(named, check) == "wrong_model"
    for known in ("m", "an-adapter", "/models/M-Large.gguf", "m-large-0613", "", None):
        assert whole({**STOPPED, "model": known}, check=check) == ""
    # Of a request that names no model any may answer.
    assert sickness_of(check.judge_whole("chat", json.dumps(other).encode(), b"{}")) == ""
    assert sickness_of(check.judge_whole("chat", json.dumps(other).encode(), b"\xff")) == ""
    assert sickness_of(check.judge_whole("chat", json.dumps(other).encode(), b'{"model":3}')) == (
        "wrong_model"
    )


def test_a_worker_that_ever_named_another_may_go_on_so() -> None:
    check = AnswerCheck(("m",))

    found = [whole({**STOPPED, "model": name}, check=check) for name in ("own", *"m" * SURE, "own")]

    assert set(found) == {""}
    assert whole({**STOPPED, "model": "any"}, check=AnswerCheck()) == ""


def test_a_worker_that_always_gave_a_reason_is_held_to_it() -> None:
    check = AnswerCheck()
    for _ in range(SURE):
        assert whole(STOPPED, check=check) == ""

    assert (whole(CHAT, check=check), whole(CHAT, "completions", check)) == ("unfinished", "")


@pytest.mark.parametrize(
    ("data", "sickness"),
    [
        (TOKEN, ""),
        (DONE, ""),
        (b": comment\n\n", ""),
        (b": comment\n\n" + TOKEN, ""),
        (b"id: 1\nretry: 3\n\n", ""),
        (b'event: message_start\ndata: {"message":{"model":"m"}}\n\n', ""),
        (b'data: {"response":\ndata: {"model":"m"}}\n\n', ""),
        (b"data: [DONE]\ndata:\n\n", ""),
        (b'data: {"message":3}\n\n', ""),
        (b'data: {"a":1}', ""),
        (b"\ndata: [DONE]\r\n\r\n", ""),
        (b'data: {"error":{"message":"m"}}\n\n', "error"),
        (b'data: {"choices":[\n\n', "malformed"),
        (b"data: 3\n\n", "malformed"),
        (b"\x01\x02\n\n\xff", "malformed"),
        (b"\x01\x02\ndata: {}\n\n", ""),
        (b"<html>", "malformed"),
        (b"x" * 70_000, "malformed"),
        (b"data: {" + b"x" * 70_000, ""),
    ],
)
def test_the_first_event(data: bytes, sickness: str) -> None:
    assert first(data) == sickness


@pytest.mark.parametrize(
    ("data", "sickness"),
    [
        (TOKEN + STOP + DONE, ""),
        (TOKEN + STOP, ""),
        (TOKEN + DONE, ""),
        (STOP, ""),
        (TOKEN + STOP + b"data: [DONE]", ""),
        (TOKEN + STOP.rstrip(), ""),
        (TOKEN + b": bye", "unfinished"),
        (TOKEN + STOP + b": bye", ""),
        (b"", "empty"),
        (DONE, "empty"),
        (b": comment\n\n", "empty"),
        (TOKEN, "unfinished"),
        (TOKEN + TOKEN[:40], "unfinished"),
        (TOKEN + b'data: {"error":{"message":"m"}}\n\n' + DONE, "error"),
        (TOKEN + b'data: {"error":{"message":"m"}}', "error"),
        (TOKEN + b"data: {" + b"x" * 70_000 + b"\n\n" + STOP + DONE, ""),
        (TOKEN + b"data: {" + b"x" * 70_000, "unfinished"),
    ],
)
def test_the_end_of_a_stream(data: bytes, sickness: str) -> None:
    assert end(data) == sickness


def test_a_worker_whose_streams_always_ended_so_is_held_to_it() -> None:
    check = AnswerCheck()
    for _ in range(SURE):
        assert end(TOKEN + STOP + DONE, check) == ""

    assert end(TOKEN + STOP + b"data: [DONE]", check) == ""
    assert end(TOKEN + DONE, check) == "unfinished"
    assert end(TOKEN + STOP, check) == "unfinished"


def test_named_events_end_with_a_reason_alone() -> None:
    delta = b'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'
    stop = b'event: message_delta\ndata: {"delta":{"stop_reason":"end_turn"}}\n\n'
    made = b'event: response.completed\ndata: {"response":{"status":"completed","output":[],'
    check = AnswerCheck()
    for _ in range(SURE):
        assert end(delta + stop, check, "messages") == ""

    assert end(delta, check, "messages") == "unfinished"
    assert end(delta + made + b'"usage":null}}\n\n', form="responses") == ""
    assert end(delta, form="responses") == "unfinished"


@pytest.mark.parametrize(
    ("form", "data", "none"),
    [
        ("chat", STOP + DONE, True),
        ("chat", STOP.replace(b"{}", b'{"role":"assistant","content":""}') + DONE, False),
        ("chat", STOP.replace(b"{}", b'{"content":"a"}') + DONE, False),
        ("chat", STOP.replace(b'"stop"', b'"length"') + DONE, True),
        ("chat", STOP.replace(b'"stop"', b'"tool_calls"') + DONE, False),
        ("chat", STOP.replace(b'"stop"', b'"content_filter"') + DONE, False),
        ("chat", TOKEN + DONE, False),
        ("chat", b'data: {"choices":3}\n\n' + STOP + DONE, False),
        ("completions", STOP + DONE, False),
        ("messages", STOP + DONE, False),
    ],
)
def test_a_short_stream_without_output(form: Form, data: bytes, none: bool) -> None:
    stream, events = read(data)

    assert has_no_token(form, stream, events, ASKED) is none


@pytest.mark.parametrize(("count", "none"), [(0, True), (1, False)])
@pytest.mark.parametrize("form", ["chat", "completions"])
def test_a_short_stream_that_counts_its_tokens(form: Form, count: int, none: bool) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n' % count
    begun = STOP.replace(b"{}", b'{"role":"assistant"}')
    stream, events = read(begun + usage + DONE)

    assert has_no_token(form, stream, events, ASKED) is none


@pytest.mark.parametrize(
    ("body", "sickness"),
    [(b" {", ""), (b" " * 100, ""), (b"<!doctype", "html"), (b"\x00", "malformed")],
)
def test_the_start_of_a_long_answer(body: bytes, sickness: str) -> None:
    assert judge_start(body) == sickness


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"error":{"message":"CUDA\\nerror"}}', "CUDA error"),
        (b'{"error":"no  room"}', "no room"),
        (b'{"object":"error","message":"flat"}', "flat"),
        (b'{"error":{"message":"' + b"x" * 900 + b'"}}', "x" * 200),
        (b"{}", ""),
        (b"\xff", ""),
    ],
)
def test_the_words_of_an_error(data: bytes, words: str) -> None:
    assert error_words(data) == words
