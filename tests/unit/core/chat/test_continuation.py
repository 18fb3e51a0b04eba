"""What another engine is asked so that a stream goes on, and what its client then gets."""

import json
from array import array
from typing import cast

import msgspec
import pytest

from kvmesh._native import text_hash
from kvmesh.core.chat.continuation import Continuation, go_on, way_of
from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.splice import DivergedError, Seen, TextSplice, TokenSplice, names_in
from kvmesh.core.chat.stream_form import GREEDY, REPEATED, SAMPLED

OPENING = (
    b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":['
    b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}'
)
MARKED = (4, 0), (0, 2), (20, 0)
"""Kinds, with flags, and sizes of marks: a role, a text of two bytes, an end."""

BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 10,
        "min_tokens": 4,
        "temperature": 0,
        "top_p": 0.5,
        "cache_salt": "s",
        "documents": [{"text": "no more"}],
    }
).encode()


def ids(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


def having(kept: Kept, **texts: bytes) -> Kept:
    """Return `kept` with texts that have passed, by kind."""
    fields: dict[str, int] = {}
    for name, value in texts.items():
        fields |= {f"{name}_bytes": len(value), f"{name}_hash": text_hash(0, value)}
    return msgspec.structs.replace(kept, **fields)


KEPT = having(Kept(ids(1, 2, 3), ids(4, 5), choices=1), content=b"ab")


def data(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def events(passed: bytes) -> list[object]:
    found: list[object] = []
    for block in passed.split(b"\n\n"):
        if block:
            assert block.startswith(b"data: ")
            said = block[6:]
            found.append("[DONE]" if said == b"[DONE]" else json.loads(said))
    return found


def completion(piece: str, token: int, reason: str | None = None) -> dict[str, object]:
    return {
        "id": "cmpl-2",
        "object": "text_completion",
        "created": 99,
        "model": "other",
        "choices": [
            {
                "index": 0,
                "text": piece,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": reason and 7,
                "prompt_token_ids": None,
                "token_ids": [token],
            }
        ],
    }


def by_ids(kind: str = "chat", body: bytes = BODY, kept: Kept = KEPT) -> Continuation:
    going = go_on(body, kind, GREEDY, Seen(kept, OPENING, cached_tokens=2))
    assert isinstance(going, Continuation)
    return going


def test_the_prompt_of_what_goes_on_is_prompt_and_answer_so_far() -> None:
    going = by_ids()
    assert (going.path, going.tokens, going.limit) == (b"/v1/completions", ids(1, 2, 3, 4, 5), 8)
    assert json.loads(cast("bytes", going.body)) == {
        "model": "m",
        "temperature": 0,
        "top_p": 0.5,
        "min_tokens": 2,
        "cache_salt": "s",
        "stream_options": {"include_usage": True},
        "prompt": [1, 2, 3, 4, 5],
        "max_tokens": 8,
        "stream": True,
        "return_token_ids": True,
    }


@pytest.mark.parametrize(
    ("kind", "fields", "limit"),
    [
        ("chat", {}, None),
        ("chat", {"max_completion_tokens": 5, "max_tokens": 50}, 3),
        ("completions", {"max_tokens": None}, None),
        ("completions", {}, 14),
        ("completions", {"max_tokens": 9}, 7),
    ],
)
def test_the_limit_is_what_is_left_of_it(
    kind: str, fields: dict[str, object], limit: int | None
) -> None:
    going = by_ids(kind, json.dumps({"model": "m"} | fields).encode())
    assert (json.loads(cast("bytes", going.body))["max_tokens"], going.limit) == (limit, limit or 0)


def test_a_chat_goes_on_as_the_engine_before_would_have() -> None:
    splice = by_ids().splice
    assert isinstance(splice, TokenSplice)
    last = completion("d", 7, "stop")
    usage = {
        "id": "cmpl-2",
        "object": "text_completion",
        "created": 99,
        "model": "other",
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "total_tokens": 99,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
    sent = data(completion("c", 6)) + data(last) + data(usage) + b"data: [DONE]\n\n"
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}

    def chunk(piece: str, **more: object) -> dict[str, object]:
        choice = {"index": 0, "delta": {"content": piece}, "logprobs": None, "finish_reason": None}
        return {**head, "choices": [{**choice, **more, "token_ids": None}]}

    assert events(splice.feed(sent)) == [
        chunk("c"),
        chunk("d", finish_reason="stop", stop_reason=7),
        {
            **head,
            "choices": [],
            "usage": {
                "prompt_tokens": 3,
                "total_tokens": 7,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
        },
        "[DONE]",
    ]
    assert (splice.past, splice.feed(b": waiting\n\n")) == ((3, 2), b": waiting\n\n")


def test_a_completion_goes_on_with_ids_if_it_asked_for_them() -> None:
    body = json.dumps({"model": "m", "return_token_ids": True}).encode()
    splice = by_ids("completions", body).splice
    [event] = cast("list[dict[str, object]]", events(splice.feed(data(completion("c", 6)))))
    assert (event["id"], event["object"]) == ("chatcmpl-1", "text_completion")
    [choice] = cast("list[dict[str, object]]", event["choices"])
    assert (choice["text"], choice["token_ids"]) == ("c", [6])
    unasked = by_ids("completions", b"{}").splice
    [event] = cast("list[dict[str, object]]", events(unasked.feed(data(completion("c", 6)))))
    assert cast("list[dict[str, object]]", event["choices"])[0]["token_ids"] is None


def test_usage_that_names_no_more_is_counted_all_the_same() -> None:
    going = go_on(BODY, "chat", GREEDY, Seen(KEPT, b"no JSON", cached_tokens=None))
    assert isinstance(going, Continuation)
    spare = {"choices": None, "usage": {"prompt_tokens": 5, "completion_tokens": None}}
    [event] = cast("list[dict[str, object]]", events(going.splice.feed(data(spare))))
    assert event["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}
    told = {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}}
    [event] = cast("list[dict[str, object]]", events(going.splice.feed(data(told))))
    usage = cast("dict[str, object]", event["usage"])
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


def test_a_second_cut_goes_on_behind_all_that_came() -> None:
    splice = by_ids().splice
    more = having(Kept(b"", ids(6), choices=1), content=b"c")
    seen = splice.seen(more)
    assert (seen.kept.token_ids, seen.kept.prompt_ids) == (ids(4, 5, 6), ids(1, 2, 3))
    assert seen.kept.content_bytes == 3
    going = go_on(BODY, "chat", GREEDY, seen)
    assert isinstance(going, Continuation)
    assert going.tokens == ids(1, 2, 3, 4, 5, 6)
    lost = splice.seen(Kept(lost="no ids", content_bytes=1, choices=1)).kept
    assert lost.lost == lost.followed_by(more).lost == "no ids"
    again = go_on(BODY, "chat", GREEDY, Seen(lost, OPENING))
    assert isinstance(again, Continuation)
    with pytest.raises(DivergedError, match="another text"):
        again.splice.feed(data(chat_delta({"content": "abc"})))


def test_garbage_is_not_passed() -> None:
    with pytest.raises(DivergedError, match="no JSON object"):
        by_ids().splice.feed(b"data: <html>\n\n")


def test_more_of_one_text_before_all_of_another_is_another_answer() -> None:
    splice = again(having(Kept(choices=1), reasoning=b"why", content=b"a"))
    splice.feed(data(chat_delta({"reasoning": "wh"})))
    with pytest.raises(DivergedError, match="before all of another"):
        splice.feed(data(chat_delta({"content": "ab"})))


def test_the_ways() -> None:
    assert (way_of(GREEDY, KEPT), way_of(SAMPLED, KEPT)) == ("ids", "ids")
    assert (way_of(REPEATED, KEPT), way_of(SAMPLED, Kept())) == ("again", "again")
    assert way_of(GREEDY, having(Kept(ids(1), ids(2), choices=2), content=b"a")) == "none"
    lost = having(Kept(lost="too long"), content=b"a")
    assert (way_of(GREEDY, lost), way_of(SAMPLED, lost)) == ("again", "none")
    thinking = having(Kept(ids(1), ids(2)), reasoning=b"a")
    assert (way_of(GREEDY, thinking), way_of(SAMPLED, thinking)) == ("again", "none")
    assert way_of(SAMPLED, having(Kept(ids(1), ids(2)), reasoning=b"a", content=b"a")) == "ids"
    calling = having(Kept(ids(1), ids(2), tool_calls=1), content=b"a")
    assert way_of(SAMPLED, calling) == "none"
    assert go_on(BODY, "chat", SAMPLED, Seen(calling)) is None
    assert go_on(b"[", "chat", GREEDY, Seen(KEPT)) is None


def test_what_lacks_its_end_alone_is_completed() -> None:
    finished = Kept(ids(1, 2, 3), ids(4, 5), finished=True, choices=1)
    end = go_on(BODY, "chat", GREEDY, Seen(finished, OPENING, cached_tokens=2))
    assert isinstance(end, bytes)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    usage: dict[str, object] = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    assert events(end) == [{**head, "choices": [], "usage": usage | details}, "[DONE]"]
    untold = go_on(BODY, "chat", GREEDY, Seen(finished, OPENING))
    assert isinstance(untold, bytes)
    assert events(untold)[0] == {**head, "choices": [], "usage": usage}
    assert go_on(b"{}", "chat", GREEDY, Seen(finished, OPENING)) == b"data: [DONE]\n\n"
    spent = Kept(ids(1), ids(*range(10)), choices=1)
    for kind, said in (("chat", {"delta": {"content": ""}}), ("completions", {"text": ""})):
        passed = go_on(BODY, kind, GREEDY, Seen(spent, OPENING))
        assert isinstance(passed, bytes)
        first = cast("dict[str, object]", events(passed)[0])
        reason = {"logprobs": None, "finish_reason": "length", "stop_reason": None}
        assert first["choices"] == [{"index": 0, **said, **reason}]


def chat_delta(
    delta: dict[str, object], reason: str | None = None, **more: object
) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {"id": "chatcmpl-9", "created": 55, "model": "m", "choices": [choice], **more}


def again(kept: Kept, opening: bytes = OPENING) -> TextSplice:
    going = go_on(BODY, "chat", REPEATED, Seen(kept, opening))
    assert isinstance(going, Continuation)
    assert (going.path, going.body, going.tokens) == (None, None, None)
    assert isinstance(going.splice, TextSplice)
    return going.splice


def deltas(passed: bytes) -> list[object]:
    found: list[object] = []
    for event in events(passed):
        if isinstance(event, dict):
            assert (event["id"], event["created"]) == ("chatcmpl-1", 7)
            found += [choice["delta"] for choice in event["choices"]] or ["usage"]
        else:
            found.append(event)
    return found


ROLE = chat_delta({"role": "assistant", "content": ""})


def test_the_same_answer_passes_from_where_the_client_has_it() -> None:
    splice = again(having(Kept(choices=1), content=b"abc"))
    sent = [ROLE, chat_delta({"content": "ab"}), chat_delta({"content": "cd"})]
    passed = splice.feed(b"".join(map(data, sent)))
    assert deltas(passed) == [{"content": "d"}]
    end = [chat_delta({"content": ""}, "stop"), {**ROLE, "choices": []}]
    passed = splice.feed(b"".join(map(data, end)) + b"data: [DONE]\n\n")
    assert deltas(passed) == [{"content": ""}, "usage", "[DONE]"]


def test_reasoning_and_tool_calls_pass_from_where_the_client_has_them() -> None:
    splice = again(having(Kept(tool_calls=1, choices=1), reasoning=b"why\\n", arguments=b'{\\"a'))

    def call(arguments: str | None, **more: object) -> dict[str, object]:
        function: dict[str, object] = {} if arguments is None else {"arguments": arguments}
        if "id" in more:
            function = {"name": "f"} | function
        return {"tool_calls": [{"index": 0, **more, "function": function}]}

    sent = [
        ROLE,
        chat_delta({"reasoning": "why"}),
        chat_delta({"reasoning": "\n", "content": None}),
        chat_delta({"tool_calls": None}),
        chat_delta(call(None, id="call-x", type="function")),
        chat_delta(call('{"a":')),
        chat_delta(call("1}")),
        chat_delta(call("{}", id="call-y", type="function")),
    ]
    passed = splice.feed(b"".join(map(data, sent)))
    assert deltas(passed) == [
        {"tool_calls": [{"index": 0, "function": {"arguments": '":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call-y",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}"},
                }
            ]
        },
    ]
    assert splice.seen(KEPT).kept is KEPT


def test_marks_are_those_of_what_the_client_got() -> None:
    role, text, end = (bytes([kind, 0, size, 0, *bytes(4)]) for kind, size in MARKED)
    kept = msgspec.structs.replace(having(Kept(choices=1), content=b"ab"), marks=role + text)
    whole = msgspec.structs.replace(kept, marks=role + text + end)
    splice = again(kept)

    splice.feed(data(ROLE) + data(chat_delta({"content": "ab"})) + data(chat_delta({}, "stop")))

    assert splice.seen(whole).kept.marks == role + text + end
    assert splice.seen(msgspec.structs.replace(whole, marks=role)).kept.marks == role + text


def test_another_answer_is_not_passed() -> None:
    kept = having(Kept(choices=1), content=b"abc")
    with pytest.raises(DivergedError, match="another text than the client has, within 3 bytes"):
        again(kept).feed(data(chat_delta({"content": "abd and more"})))
    with pytest.raises(DivergedError, match="an end before"):
        again(kept).feed(data(chat_delta({"content": "ab"}, "stop")))
    with pytest.raises(DivergedError, match="no answer"):
        again(kept).feed(b'data: {"choices": 5}\n\n')
    splice = again(kept)
    splice.feed(data(chat_delta({"content": "a"})))
    assert splice.seen(KEPT).kept is kept


def test_all_passes_where_nothing_has() -> None:
    splice = again(Kept(), b"")
    assert len(events(splice.feed(data(ROLE) + data(chat_delta({"content": "a"}))))) == 2
    asked = go_on(b'{"prompt": "x"}', "completions", SAMPLED, Seen(Kept(), OPENING))
    assert isinstance(asked, Continuation)
    assert len(events(asked.splice.feed(data(completion("a", 1))))) == 1


def test_of_a_long_first_event_its_names_are_enough() -> None:
    event = json.loads(OPENING) | {"prompt_token_ids": list(range(2000))}
    names = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}

    assert json.loads(names_in(json.dumps(event).encode())).items() >= names.items()
    assert len(names_in(json.dumps(event).encode())) < len(OPENING)
    assert names_in(b"[DONE]") == b""
