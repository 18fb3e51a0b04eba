"""What a client gets of two engines, the first of which was lost, is what it would get of one."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from kvmesh.core.chat.continuation import Continuation, go_on
from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.splice import DivergedError, Seen, Splice
from kvmesh.core.chat.stream_form import GREEDY, REPEATED
from kvmesh.core.engines.event_stream import new_event_stream

WORDS = st.text(st.sampled_from('ab "\\/\n\t\x00\x7fé中\u2028😀{}[]:,'), max_size=12)
KINDS = ("reasoning", "content", "arguments")
BODY = b'{"model":"m","messages":[],"temperature":0,"stream_options":{"include_usage":true}}'
DONE = b"data: [DONE]\n\n"
Piece = tuple[str, str]
"""A kind and a part of its text; of kind "call" its name, of "role" nothing."""


class Answer(msgspec.Struct):
    """An answer, in the order in which engines give its parts."""

    reasoning: str
    content: str
    calls: list[str]
    ascii: bool

    def pieces(self, data: st.DataObject) -> list[Piece]:
        """Return it in pieces of any sizes, behind the one that has the role."""
        found: list[Piece] = [("role", "")]
        found += [("reasoning", one) for one in _cut(data, self.reasoning)]
        found += [("content", one) for one in _cut(data, self.content)]
        for number, one in enumerate(self.calls):
            found.append(("call", f"f{number}"))
            found += [("arguments", part) for part in _cut(data, one)]
        return found


ANSWERS = st.builds(Answer, WORDS, WORDS, st.lists(WORDS, max_size=2), st.booleans())


def _cut(data: st.DataObject, text: str) -> list[str]:
    places = data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4))
    edges = [0, *sorted(one for one in places if one < len(text)), len(text)]
    return [text[first:last] for first, last in pairwise(edges)]


def delta_of(piece: Piece, call: int, run: str) -> dict[str, Any]:
    kind, text = piece
    match kind:
        case "role":
            return {"role": "assistant", "content": ""}
        case "call":
            function = {"name": text, "arguments": ""}
            named = {"id": f"call-{run}-{call}", "type": "function", "function": function}
            return {"tool_calls": [{"index": call, **named}]}
        case "arguments":
            return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
        case _:
            return {kind: text}


def events_of(pieces: Sequence[Piece], run: str, *, ascii_only: bool) -> list[bytes]:
    """Return the events of a chat, its end last: reason, usage and [DONE]."""
    found: list[bytes] = []
    call = -1

    def add(choices: list[dict[str, Any]], **more: Any) -> None:
        head = {"id": run, "object": "chat.completion.chunk", "created": len(run), "model": run}
        event = {**head, "choices": choices, **more}
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=ascii_only)
        found.append(b"data: %b\n\n" % text.encode())

    for piece in pieces:
        call += piece[0] == "call"
        delta = delta_of(piece, call, run)
        add([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])
    add([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}])
    add([], usage={"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12})
    return [*found, DONE]


class Client:
    """What somebody makes of the events."""

    def __init__(self, passed: bytes) -> None:
        self.texts = dict.fromkeys(KINDS, "")
        self.calls: list[str] = []
        self.ids: set[str] = set()
        self.names: set[tuple[str, int, str]] = set()
        self.others: list[object] = []
        for block in passed.split(b"\n\n")[:-1]:
            if block == b"data: [DONE]":
                self.others.append("done")
            else:
                self._take(json.loads(block.removeprefix(b"data: ")))

    def _take(self, event: dict[str, Any]) -> None:
        self.names.add((event["id"], event["created"], event["model"]))
        if "usage" in event:
            self.others.append(event["usage"])
        for choice in event["choices"]:
            delta = choice["delta"]
            self.others += ["role"] * ("role" in delta)
            self.others += [choice["finish_reason"]] * (choice["finish_reason"] is not None)
            self.texts["reasoning"] += delta.get("reasoning") or ""
            self.texts["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                self.ids |= {call["id"]} if "id" in call else set()
                if "name" in call["function"]:
                    self.calls.append(call["function"]["name"])
                self.texts["arguments"] += call["function"].get("arguments") or ""


def kept_of(passed: Sequence[bytes], *, strip: bool = False) -> Kept:
    stream = new_event_stream()
    stream.keep(1 << 20, strip)
    for one in passed:
        stream.feed(one)
    kept: Kept | None = stream.kept
    assert kept is not None
    return kept


def spliced(form: Any, passed: Sequence[bytes], kind: str = "chat") -> Splice:
    opening = passed[0].removeprefix(b"data: ").strip() if passed else b""
    going = go_on(BODY, kind, form, Seen(kept_of(passed), opening))
    assert isinstance(going, Continuation)
    return going.splice


def fed(data: st.DataObject, splice: Splice, events: Sequence[bytes]) -> bytes:
    """Return what passes of events that come in any groups."""
    passed = b""
    left = list(events)
    while left:
        count = data.draw(st.integers(1, len(left)))
        passed += splice.feed(b"".join(left[:count]))
        del left[:count]
    return passed


@given(ANSWERS, st.data())
def test_the_same_answer_again_passes_from_where_it_was_cut(
    answer: Answer, data: st.DataObject
) -> None:
    first = events_of(answer.pieces(data), "one", ascii_only=answer.ascii)
    second = events_of(answer.pieces(data), "second", ascii_only=answer.ascii)
    cut = data.draw(st.integers(0, len(first) - 3))

    passed = b"".join(first[:cut]) + fed(data, spliced(REPEATED, first[:cut]), second)

    got, whole = Client(passed), Client(b"".join(first))
    assert got.texts == whole.texts
    assert (got.calls, len(got.ids)) == (whole.calls, len(whole.calls))
    assert got.others == whole.others
    assert got.names == (whole.names if cut else Client(b"".join(second)).names)


@given(ANSWERS, st.data())
def test_another_answer_is_not_passed_beyond_what_differs(
    answer: Answer, data: st.DataObject
) -> None:
    pieces = answer.pieces(data)
    first = events_of(pieces, "one", ascii_only=answer.ascii)
    cut = data.draw(st.integers(1, len(pieces)))
    said = Client(b"".join(first[:cut])).texts
    kind = data.draw(st.sampled_from(KINDS))
    assume(said[kind])
    at = data.draw(st.integers(0, len(said[kind]) - 1))
    other = data.draw(st.sampled_from(["", "z", "zz"]))
    second = _changed(answer, kind, at, other)
    texts = Client(b"".join(events_of(second.pieces(data), "x", ascii_only=answer.ascii))).texts
    assume(not texts[kind].startswith(said[kind]))
    splice, passed = spliced(REPEATED, first[:cut]), b""

    diverged = False
    for event in events_of(second.pieces(data), "second", ascii_only=answer.ascii)[:-2]:
        try:
            passed += splice.feed(event)
        except DivergedError:
            diverged = True
            break

    assert diverged
    assert set(Client(passed).texts.values()) == {""}


def _changed(answer: Answer, kind: str, at: int, other: str) -> Answer:
    """Return an answer with another character at a place of one kind's text."""
    if kind != "arguments":
        text = getattr(answer, kind)
        return msgspec.structs.replace(answer, **{kind: text[:at] + other + text[at + 1 :]})
    calls = list(answer.calls)
    for number, one in enumerate(calls):
        if at < len(one):
            calls[number] = one[:at] + other + one[at + 1 :]
            break
        at -= len(one)
    return msgspec.structs.replace(answer, calls=calls)


@given(st.lists(WORDS.filter(bool), min_size=1, max_size=12), st.booleans(), st.data())
def test_what_follows_the_ids_of_an_answer_passes_as_it_comes(
    words: list[str], chat: bool, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(words)))
    kind = "chat" if chat else "completions"
    first = [_token_event(number, one, "one", chat=chat) for number, one in enumerate(words)]
    rest = [_token_event(number, one, "second") for number, one in enumerate(words)][cut:]
    usage = {"prompt_tokens": 2 + cut, "completion_tokens": len(rest)}
    end = {"id": "second", "object": "x", "created": 1, "model": "y", "choices": [], "usage": usage}
    rest += [b"data: %b\n\n" % json.dumps(end).encode(), DONE]
    splice = spliced(GREEDY, first[:cut], kind)

    passed = fed(data, splice, rest)

    events = [json.loads(one[6:]) for one in passed.split(b"\n\n")[:-2]]
    choices = [choice for one in events for choice in one["choices"]]
    texts = [one["delta"]["content"] if chat else one["text"] for one in choices]
    assert texts == words[cut:]
    assert {one["token_ids"] for one in choices} <= {None}
    assert {one["id"] for one in events} == {"one"}
    assert events[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": len(words)}
    assert passed.endswith(DONE)
    assert splice.seen(kept_of(rest[:-2])).kept.token_ids == kept_of(first).token_ids


def _token_event(number: int, word: str, run: str, *, chat: bool = False) -> bytes:
    """Return an event of one token, the first with the prompt's ids."""
    prompt = [7, 8] if number == 0 else None
    choice: dict[str, Any] = {"index": 0, "finish_reason": None, "token_ids": [100 + number]}
    choice |= {"delta": {"content": word}} if chat else {"text": word, "prompt_token_ids": prompt}
    event = {"id": run, "object": "o", "created": len(run), "model": run, "choices": [choice]}
    event |= {"prompt_token_ids": prompt} if chat else {}
    return b"data: %b\n\n" % json.dumps(event).encode()
