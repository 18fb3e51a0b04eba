"""Usage is asked for without another byte changed, and left out of a stream however that is cut."""

import json
import re
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import ask_usage
from kvmesh.core.engines.event_stream import DUE, ENDED, LAST_CHUNK, TAKEN, new_event_stream
from kvmesh.core.engines.sse import Usage

WISH: Final = {"include_usage": True}
TOKEN: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"\\"choices\\":[] \\"usage\\":{"}}]}'
)
CONTINUOUS: Final = b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":7}}'
USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}'
SPACED: Final = b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": 4}, "choices": []}'
NULL: Final = b'data: {"choices":[],"usage":null}'
NAMED: Final = b"event: x\n" + USAGE
DONE: Final = b"data: [DONE]"
EVENTS: Final = (TOKEN, CONTINUOUS, USAGE, SPACED, NULL, NAMED, b": comment", b"", DONE)

texts = st.text(st.sampled_from('"\\stream_options{}:, é\n'), max_size=40)
flags = st.sampled_from((True, False, None, 1, "true"))
options = st.one_of(
    st.none(),
    st.just({}),
    st.fixed_dictionaries({}, optional={"include_usage": flags, "continuous_usage_stats": flags}),
    st.sampled_from((3, "x", [], {"include_usage\n": True})),
)
bodies = st.fixed_dictionaries(
    {"stream": st.just(True)},
    optional={
        "stream_options": options,
        "prompt": texts,
        "tools": st.just([{"stream_options": 1}]),
    },
)


def naive(body: dict[str, Any]) -> dict[str, Any] | None:
    given = body.get("stream_options")
    if given is not None and not isinstance(given, dict):
        return None
    if (given or {}).get("include_usage") not in (None, False):
        return None
    if any("\n" in name for name in given or ()):
        return None  # an escape in a name, which nobody sends, is not read
    return body | {"stream_options": (given or {}) | WISH}


@given(bodies, st.permutations(("stream", "stream_options", "prompt", "tools")), st.booleans())
def test_a_body_asks_for_usage_and_is_else_the_same(
    body: dict[str, Any], order: list[str], ids: bool
) -> None:
    body = {name: body[name] for name in order if name in body}
    spaced = json.dumps(body).encode()

    asked = ask_usage(spaced, ids)

    wanted = naive(body)
    assert (asked is None) == (wanted is None)
    if asked is not None and wanted is not None:
        assert json.loads(asked) == wanted | ({"return_token_ids": True} if ids else {})
        assert (
            len(asked) - len(spaced) <= len(b'"stream_options":{"include_usage":true},') + 26 * ids
        )


@pytest.mark.parametrize(
    "body",
    [
        b"", b"  ", b"[]", b"{}", b"{ }", b'"stream_options"', b'{"stream_options"',
        b'{"stream_options":{"include_usage":', b'{"stream_options":{"include_usage":false',
        b'{"\\u0073tream":true,"stream_options":{}}', b'{"stream_options":{"\\u0069":1}}',
        b'{"a":' + b"[" * 100 + b"]" * 100 + b',"stream_options":{}}',
    ],
)  # fmt: skip
def test_what_is_not_read_is_left_as_it_is(body: bytes) -> None:
    assert ask_usage(body, False) is None


def test_the_last_of_equal_names_counts_and_a_long_text_before_it_is_passed_over() -> None:
    long = b'{"prompt":"%b","stream_options":{"include_usage":false},' % (b"s_eam_ " * 40)

    asked = ask_usage(long + b'"stream_options": {"continuous_usage_stats":true}}', False)

    assert asked == long + (
        b'"stream_options": {"include_usage":true,"continuous_usage_stats":true}}'
    )
    assert ask_usage(long + b'"stream_options":{"include_usage":true}}', False) is None


def test_anything_but_a_body_is_refused() -> None:
    ask: Any = ask_usage
    for wrong in ((), (b"{}",), ("{}", False), (b"{}", False, 1)):
        with pytest.raises(TypeError):
            ask(*wrong)


def without_usage(events: list[bytes], ends: list[bytes]) -> bytes:
    left = zip(events, ends, strict=True)
    return b"".join(
        event + end for event, end in left if event not in (USAGE, SPACED)
    )  # an event that is named, or null, stays


@given(
    st.lists(st.sampled_from(EVENTS), max_size=12),
    st.sampled_from((b"\n\n", b"\r\n\r\n", b"\r\r")),
    st.lists(st.integers(0, 600), max_size=6),
)
def test_what_passes_of_a_stream_has_no_usage(
    events: list[bytes], end: bytes, cuts: list[int]
) -> None:
    ends = [end] * len(events)
    whole = b"".join(event + end for event in events)
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    hiding, plain = new_event_stream(), new_event_stream()
    hiding.hides_usage = True

    pieces = [whole[at:to] for at, to in pairwise(places)]
    passed = b"".join(map(hiding.feed, pieces)) + hiding.flush()
    shown = b"".join(map(plain.feed, pieces)) + plain.flush()

    assert shown == whole
    blank = re.compile(rb"[\r\n]+")
    assert blank.sub(b"\n", passed) == blank.sub(b"\n", without_usage(events, ends))
    assert (hiding.usage, hiding.tokens, hiding.done) == (plain.usage, plain.tokens, plain.done)


def chunk(*events: bytes) -> bytes:
    content = b"".join(event + b"\n\n" for event in events)
    return b"%x\r\n%b\r\n" % (len(content), content)


@pytest.mark.parametrize("kept", [False, True])
def test_chunks_of_http_are_framed_anew_without_usage(kept: bool) -> None:
    stream = new_event_stream()
    stream.hides_usage = True
    if kept:
        stream.keep(1 << 16, True)

    first = stream.take(chunk(TOKEN), True)
    alone = stream.take(chunk(USAGE), True)
    among = stream.take(chunk(TOKEN, USAGE, DONE) + chunk(SPACED) + chunk(CONTINUOUS), True)
    last = stream.take(chunk(USAGE) + chunk(DONE) + LAST_CHUNK, True)

    due = TAKEN | DUE
    assert first == due
    assert alone == (due, b"")
    assert among == (due, chunk(TOKEN, DONE) + chunk(CONTINUOUS))
    assert last == (due | ENDED, chunk(DONE) + LAST_CHUNK)
    assert stream.usage == Usage(9, 4)


def test_of_chunks_behind_a_carriage_return_usage_is_left_out_as_well() -> None:
    stream = new_event_stream()
    stream.hides_usage = True
    stream.feed(TOKEN + b"\r\n\r\n")
    stream.due = 100

    assert stream.take(chunk(TOKEN, USAGE), True) == chunk(TOKEN)
    assert stream.usage == Usage(9, 4)
