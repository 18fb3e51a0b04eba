"""A kept stream against a plain reading of its JSON, however its bytes are cut."""

import json
import sys
import tracemalloc
from array import array
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh._native import EventStream as CompiledStream
from kvmesh._native import text_hash
from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.stream_marks import count_events, cut_behind
from kvmesh.core.engines.event_stream import (
    DUE,
    ENDED,
    LAST_CHUNK,
    TAKEN,
    new_event_stream,
)
from tests.reference.engines.kept_output import KeptStream, NoJsonError, decoded, rechunked

Json = dict[str, Any]
PLENTY = 1 << 20
texts = st.sampled_from(
    ["", " a", 'say "hi"', '"token_ids":[1]', '\\"token_ids\\":[2]', "\\", "{[", "é\n", "error"]
) | st.text(max_size=20)
ids = st.integers(0, 2**32 - 1)
lists = st.none() | st.lists(ids, max_size=4)
odd_lists = st.sampled_from([[-1], [2**32], [1.5], [[1]], ["1"], [None], "x", 5, {}, [True], [1e3]])
odd = st.sampled_from([None, 0, "x", [], {}, ["token_ids", {"token_ids": [9]}], {"id": "x"}])
calls = st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(0, 3)},
        optional={
            "id": st.sampled_from(["call-1", None]),
            "function": st.fixed_dictionaries(
                {}, optional={"name": texts, "arguments": texts | st.none(), "token_ids": lists}
            ),
        },
    )
    | odd,
    max_size=3,
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": texts | st.none(),
        "reasoning": texts,
        "reasoning_content": texts | st.none(),
        "tool_calls": calls | odd,
        "token_ids": lists,
    },
)
indices = st.sampled_from([0] * 8 + [1, 2, 7])
reasons = st.sampled_from([None, None, "stop"])


@st.composite
def choices(draw: st.DrawFn) -> Json:
    """A choice of a chat or a completion, its keys in any order."""
    lists_of = lists if draw(st.integers(0, 9)) else odd_lists
    one = draw(
        st.fixed_dictionaries(
            {"index": indices},
            optional={
                "delta": deltas | odd,
                "text": texts,
                "logprobs": odd,
                "finish_reason": reasons,
                "token_ids": lists_of,
                "prompt_token_ids": lists_of,
            },
        )
    )
    return {key: one[key] for key in draw(st.permutations(list(one)))}


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """An event, compact or not, now and then with a byte changed or of another shape."""
    event = draw(
        st.fixed_dictionaries(
            {"id": texts, "choices": st.lists(choices() | odd, max_size=2) | odd},
            optional={"prompt_token_ids": lists, "usage": odd, "token_ids": lists},
        )
    )
    compact = draw(st.booleans())
    text = json.dumps(event, separators=(",", ":") if compact else None, ensure_ascii=compact)
    data = b"data: %b\n\n" % text.encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=2)) + data[at + draw(st.integers(0, 2)) :]
    return data


@st.composite
def alike(draw: st.DrawFn) -> bytes:
    """Events that differ but in text and ids, one of them perhaps spoilt: most streams are such."""
    kind = draw(st.sampled_from(["content", "reasoning", "text"]))
    lasts: list[Json] = [{}, {"x": [{}]}, {"prompt_token_ids": None}, {"token_ids": [7]}]
    last = draw(st.sampled_from(lasts))
    compact, data = draw(st.booleans()), b""
    for text, given_ids in draw(st.lists(st.tuples(texts, lists), min_size=2, max_size=4)):
        said: Json = {"text": text} if kind == "text" else {"delta": {kind: text}}
        event = {"choices": [{"index": 0, **said, "token_ids": given_ids, **last}], **last}
        one = json.dumps(event, separators=(",", ":") if compact else None).encode()
        if draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(one)))
            one = one[:at] + draw(st.binary(max_size=2)) + one[at + draw(st.integers(0, 2)) :]
        data += b"data: %b\n\n" % one
    return data


rare = st.sampled_from(
    [
        b"data: [DONE]\n\n",
        b": comment\n\n",
        b"\n",
        b'data: {"error":{"message":"m"}}\n\n',
        b'event: x\ndata: {"choices":[]}\n\n',
        b'data:{"choices":[]}\n\n',
        b"data: \n\n",
        b'data: {"choices":[{"index":0,"token_ids":[5]}]}\r\n\r\n',
        b"\r\n",
    ]
)
streams = st.lists(events() | alike() | rare, min_size=1, max_size=8).map(b"".join)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(one % (len(stream) + 1) for one in cuts)})
    return [stream[start:stop] for start, stop in pairwise(edges)]


def kept_stream(most_bytes: int = PLENTY, *, strip: bool = True) -> CompiledStream:
    stream = new_event_stream()
    stream.keep(most_bytes, strip)
    return stream


def kept_of(stream: CompiledStream) -> Kept:
    kept = stream.kept
    assert kept is not None
    return kept


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces if one)


@given(streams, st.lists(st.integers(0, 5000), max_size=6), st.booleans(), st.integers(0, 60))
def test_whatever_comes_is_kept_and_replaced_as_by_a_plain_reading(
    stream: bytes, cuts: list[int], strip: bool, most_ids: int
) -> None:
    most_bytes = 4 * most_ids if most_ids < 30 else PLENTY
    plain = KeptStream(most_bytes, strip=strip)
    native = kept_stream(most_bytes, strip=strip)

    for piece in cut(stream, cuts):
        framed = chunked([piece])
        try:
            taken, passed = plain.take(framed, 0), plain.feed(piece)
        except NoJsonError:
            return
        assert native.take(framed, 0) == taken
        assert native.feed(piece) == passed
        assert native.kept == plain.kept


@given(streams, st.lists(st.integers(0, 5000), max_size=6), st.booleans())
def test_cuts_change_nothing(stream: bytes, cuts: list[int], strip: bool) -> None:
    whole, pieces = kept_stream(strip=strip), kept_stream(strip=strip)

    at_once = whole.feed(stream)
    one_by_one = b"".join(pieces.feed(piece) for piece in cut(stream, cuts))

    assert at_once + whole.flush() == one_by_one + pieces.flush()
    if b"\r" not in stream:
        assert whole.kept == pieces.kept  # a blank line with a CR may be held in one, not in both


@given(st.lists(st.lists(events(), min_size=1, max_size=3), min_size=1, max_size=3))
def test_chunks_that_are_taken_say_what_their_events_say(parts: list[list[bytes]]) -> None:
    contents = [b"".join(part) for part in parts]
    taking, feeding = kept_stream(), kept_stream()

    data = chunked(contents) + LAST_CHUNK
    taken = taking.take(data, 1)
    passed = [feeding.feed(content) for content in contents]

    if taken:
        assert not isinstance(taken, bytes), "it is the end"
        flags, changed = taken if isinstance(taken, tuple) else (taken, data)
        rest = iter(passed)
        assert flags & (TAKEN | ENDED) == TAKEN | ENDED
        assert changed == rechunked(data, lambda _: next(rest))
        assert taking.kept == feeding.kept
    else:
        assert taking.kept == kept_stream().kept


def is_json(event: bytes) -> bool:
    try:
        return bool(decoded(event)) and event.count(b"\n") == 2 and b"\r" not in event
    except ValueError:
        return False


@given(events().filter(is_json))
def test_what_is_replaced_decodes_to_null_and_nothing_else_changes(event: bytes) -> None:
    stream = kept_stream()

    passed = stream.feed(event)

    if kept_of(stream).lost != "malformed":
        assert decoded(passed) == [without_ids(one) for one in decoded(event)]


def without_ids(event: Any) -> Any:
    """Return an event as it would be had nobody asked for ids."""
    event = dict(event)
    given_choices = event.get("choices")
    if isinstance(given_choices, list):
        event["choices"] = [
            {**one, **{key: None for key in ("token_ids", "prompt_token_ids") if key in one}}
            if isinstance(one, dict)
            else one
            for one in given_choices
        ]
    return {**event, **({"prompt_token_ids": None} if "prompt_token_ids" in event else {})}


LOW = 2**32 - 1


def shape(kept: Kept) -> tuple[object, ...]:
    """Return all of it that marks tell."""
    hashes = kept.content_hash & LOW, kept.reasoning_hash & LOW, kept.arguments_hash & LOW
    sizes = kept.content_bytes, kept.reasoning_bytes, kept.arguments_bytes, kept.tool_calls
    return *hashes, *sizes, kept.finished, kept.marks


@given(st.lists(events() | alike() | rare, min_size=1, max_size=8), st.integers(0, 60))
def test_marks_tell_what_had_passed_behind_each_event(parts: list[bytes], most_ids: int) -> None:
    stream, plain = new_event_stream(), kept_stream(4 * most_ids)
    stream.keep(4 * most_ids, True, marking=True)
    then: list[Kept] = []

    for block in b"".join(parts).split(b"\n\n"):
        event, marks = block + b"\n\n", len(kept_of(stream).marks)
        assert stream.feed(event) == plain.feed(event)
        kept = kept_of(stream)
        assert msgspec.structs.replace(kept, marks=b"") == plain.kept
        if len(kept.marks) > marks:
            then.append(kept)

    last = kept_of(stream)
    assert count_events(last.marks) == (len(then) if last.marks else 0)
    for number, kept in enumerate(then if last.marks else [], 1):
        found = cut_behind(last, number)
        assert found is not None
        assert shape(found.kept) == shape(kept)
        assert last.lost or found.kept.token_ids == kept.token_ids
        assert found.ended == (kept.finished and number > 1 and then[number - 2].finished)
    assert cut_behind(last, len(then) + 1) is None


def test_an_event_of_many_ids_and_a_long_text_leaves_several_marks() -> None:
    stream = new_event_stream()
    stream.keep(1 << 20, True, marking=True)
    long = TOKEN.replace(b'"a"', b'"%b"' % (b"a" * 70_000)).replace(
        b"[1]", b"[%b1]" % (b"1," * 599)
    )
    both = b'data: {"choices":[{"index":0,"delta":{"content":"a","reasoning":"b"}}]}\n\n'

    for event in (TOKEN, long, both, TOKEN):
        stream.feed(event)

    kept = kept_of(stream)
    assert (len(kept.marks), count_events(kept.marks)) == (8 * (1 + 3 + 2 + 1), 4)
    found = cut_behind(msgspec.structs.replace(kept, token_ids=packed(*[1] * 602)), 2)
    assert found is not None
    assert found.kept.token_ids == packed(*[1] * 601)
    assert (found.kept.content_bytes, found.kept.reasoning_bytes) == (70_001, 0)


@pytest.mark.parametrize(
    "event", [b'event: x\ndata: {"x":1}\n\n', b"data: {\n\n", b"data: 1\r\n\r\n"]
)
def test_an_event_that_is_not_read_ends_all_marks(event: bytes) -> None:
    stream = new_event_stream()
    stream.keep(1 << 20, True, marking=True)

    for one in (TOKEN, event, TOKEN):
        stream.feed(one)

    assert kept_of(stream).marks == b""


def packed(*numbers: int) -> bytes:
    return array("I", numbers).tobytes()


CHAT = (
    (
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}],"prompt_token_ids":[1,2,3],"prompt_text":null}\n\n'
    ),
    (
        b'data: {"choices":[{"index":0,"delta":{"content":"\\"token_ids\\":[9]"},"logprobs":null,'
        b'"finish_reason":null,"token_ids":[4294967295]}]}\n\n'
    ),
    b'data: {"choices":[{"index":0,"delta":{"reasoning":"why"},"token_ids":[5,6]}]}\n\n',
    (
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"c","function":{"name":"f",'
        b'"arguments":"{}"}},{"function":{"arguments":"x"}}]},"finish_reason":"tool_calls",'
        b'"stop_reason":null,"token_ids":[]}]}\n\n'
    ),
    b"data: [DONE]\n\n",
)


def test_a_chat_is_kept_and_passes_as_unasked() -> None:
    stream = kept_stream()

    passed = [stream.feed(event) for event in CHAT]

    assert passed == [
        CHAT[0].replace(b"[1,2,3]", b"null"),
        CHAT[1].replace(b"[4294967295]", b"null"),
        CHAT[2].replace(b"[5,6]", b"null"),
        CHAT[3].replace(b"[]", b"null"),
        CHAT[4],
    ]
    assert kept_of(stream) == Kept(
        prompt_ids=packed(1, 2, 3),
        token_ids=packed(2**32 - 1, 5, 6),
        content_bytes=17,
        content_hash=text_hash(0, b'\\"token_ids\\":[9]'),
        reasoning_bytes=3,
        reasoning_hash=text_hash(0, b"why"),
        arguments_bytes=3,
        arguments_hash=text_hash(0, b"{}x"),
        tool_calls=1,
        choices=1,
        finished=True,
        lost="",
    )


@pytest.mark.parametrize("strip", [True, False])
def test_a_completion_is_kept_as_a_chat_is(strip: bool) -> None:
    stream = kept_stream(strip=strip)
    event = (
        b'data: {"choices":[{"index":0,"text":" a","finish_reason":null,'
        b'"prompt_token_ids":[7],"token_ids":[8]}]}\n\n'
    )

    passed = stream.feed(event)

    assert passed == (event.replace(b"[7]", b"null").replace(b"[8]", b"null") if strip else event)
    kept = kept_of(stream)
    assert (kept.prompt_ids, kept.token_ids, kept.content_bytes) == (packed(7), packed(8), 2)


def test_a_piece_without_lists_passes_uncopied() -> None:
    stream = kept_stream()
    event = b'data: {"choices":[{"index":0,"delta":{"content":""},"token_ids":null}]}\n\n'
    framed = chunked([event])

    assert stream.feed(event) is event
    assert stream.take(framed, 0) == TAKEN | DUE


TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1]}]}\n\n'


@pytest.mark.parametrize(
    ("event", "why", "passed"),
    [
        (TOKEN.replace(b"[1]", b"[1,2,3]"), "too long", TOKEN.replace(b"[1]", b"null")),
        (TOKEN.replace(b"[1]", b"[-1]"), "malformed", None),
        (TOKEN.replace(b"[1]", b"[4294967296]"), "malformed", None),
        (TOKEN.replace(b"[1]", b"[1.0]"), "malformed", None),
        (TOKEN.replace(b"[1]", b"[[1]]"), "malformed", None),
        (TOKEN.replace(b"[1]", b"[1,]"), "malformed", None),
        (TOKEN.replace(b"[1]", b"7"), "malformed", None),
        (TOKEN.replace(b"}]}\n", b"}]\n"), "malformed", None),
        (TOKEN.replace(b"[1]", b"null"), "no ids", None),
        (b'event: x\ndata: {"x":1}\n\n', "no ids", None),
        (TOKEN.replace(b"\n", b"\r\n"), "malformed", None),
    ],
)
def test_ids_that_cannot_be_kept_are_lost_and_this_is_told(
    event: bytes, why: str, passed: bytes | None
) -> None:
    stream = kept_stream(8)
    stream.feed(TOKEN)

    assert stream.feed(event) == (event if passed is None else passed)
    kept = kept_of(stream)
    assert (kept.lost, kept.token_ids, kept.prompt_ids) == (why, b"", b"")
    is_behind_cr = b"\r" in event
    assert stream.feed(TOKEN) == (TOKEN if is_behind_cr else TOKEN.replace(b"[1]", b"null"))
    assert kept_of(stream).lost == why


def test_a_second_prompt_is_malformed() -> None:
    stream = kept_stream()

    for _ in range(2):
        stream.feed(CHAT[0])

    assert kept_of(stream).lost == "malformed"


def test_the_ids_of_a_long_prompt_are_held_and_kept() -> None:
    prompt = array("I", range(100_000))
    event = CHAT[0].replace(b"[1,2,3]", json.dumps(list(prompt)).encode())
    stream = kept_stream()

    passed = b"".join(stream.feed(event[at : at + 4096]) for at in range(0, len(event), 4096))

    assert passed == CHAT[0].replace(b"[1,2,3]", b"null")
    assert kept_of(stream).prompt_ids == prompt.tobytes()


def test_an_event_longer_than_may_be_held_passes_and_ends_keeping() -> None:
    event = b'data: {"x":"%b"}\n\n' % (b"x" * 70_000)
    plain, native = KeptStream(8, strip=True), kept_stream(8)

    for piece in [TOKEN, event[:66_000], event[66_000:], TOKEN]:
        assert native.feed(piece) == plain.feed(piece)
        assert native.kept == plain.kept
    assert kept_of(native).lost == "too long"
    whole = kept_stream(8)
    assert whole.feed(event) is event
    assert kept_of(whole).lost == "too long"


@example(b"", b"")
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_hash_of_a_text_is_that_of_its_parts(first: bytes, second: bytes) -> None:
    state = 0xCBF29CE484222325
    for byte in first + second:
        state = (state ^ byte) * 0x100000001B3 % 2**64

    assert text_hash(text_hash(0, first), second) == state ^ 0xCBF29CE484222325


def test_what_is_kept_is_counted_as_memory_and_given_back() -> None:
    plain, stream = new_event_stream(), kept_stream()
    tracemalloc.start()
    try:
        for _ in range(50_000):
            stream.feed(TOKEN)
        used, _ = tracemalloc.get_traced_memory()
        size = sys.getsizeof(stream)
        del stream
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sys.getsizeof(plain) < 300
    assert 200_000 < size < 400_000
    assert 200_000 < used - left < 400_000


def test_misuse_of_keeping_is_an_error() -> None:
    begun, twice, made = new_event_stream(), kept_stream(), new_event_stream()
    begun.feed(TOKEN)

    for stream in (begun, twice):
        with pytest.raises(RuntimeError, match="has begun, or is kept"):
            stream.keep(10, True)
    with pytest.raises(ValueError, match="-1 bytes"):
        made.keep(-1, True)
    wrong: Any = made
    for arguments in ((), (1,), ("1", True), (1, True, False, 2)):
        with pytest.raises(TypeError):
            wrong.keep(*arguments)
    with pytest.raises(TypeError):
        text_hash(0, wrong)
    assert (begun.kept, made.kept) == (None, None)
    made.keep(1 << 80, strip=True)
    assert kept_of(made).lost == ""
