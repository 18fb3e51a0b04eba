"""The scanner and the gate against a plain reading of the whole text, at every split."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.engines.event_stream import EventStream
from tests.property.engines.naive_sse import NaiveReading

contents = st.text(max_size=8) | st.sampled_from(
    ["[DONE]", "data: [DONE]\n\n", '"usage":{"prompt_tokens":1}', '{"error":1}', "\r\n\r\n", "\x85"]
)
tokens = st.builds(
    lambda content, compact: json.dumps(
        {"choices": [{"delta": {"content": content}}]},
        separators=(",", ":") if compact else None,
        ensure_ascii=compact,
    ),
    contents,
    st.booleans(),
)
counts = st.integers(0, 1000)
usages = st.builds(
    lambda prompt, completion, cached: json.dumps(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
            },
        }
    ),
    counts,
    counts,
    st.none() | counts,
)
deltas = st.fixed_dictionaries({"content": contents}) | st.builds(
    lambda name: {"tool_calls": [{"index": 0, "function": name}]},
    st.sampled_from([{"name": "Bash"}, {"name": "Read"}, {"arguments": '"name":"x"'}]),
)
endings = st.builds(
    lambda delta, reason, compact: json.dumps(
        {"choices": [{"delta": delta, "finish_reason": reason}]},
        separators=(",", ":") if compact else None,
    ),
    deltas,
    st.sampled_from([None, "stop", "tool_calls", "length", "abort"]),
    st.booleans(),
)
payloads = (
    tokens
    | usages
    | endings
    | st.sampled_from(
        [
            "[DONE]",
            '{"error":{"message":"boom"}}',
            '{"object":"error","message":"boom"}',
            '{"error":null,"x":1}',
            '{"usage":null}',
            "not json",
            "",
        ]
    )
)
fields = (
    st.builds("data: {}".format, payloads)
    | st.builds("data:{}".format, payloads)
    | st.sampled_from([": comment", "event: error", "event: content_block_delta", "event: ping"])
    | st.sampled_from(["id: 1", "retry: 10", "data", "nonsense"])
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of events and fragments, all ends of line mixed, its last event perhaps cut."""
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n", "\r"]]))
    text = ""
    for _ in range(draw(st.integers(0, 6))):
        lines = draw(st.lists(fields, min_size=1, max_size=3))
        text += "".join(line + draw(st.sampled_from(ends)) for line in [*lines, ""])
    if draw(st.booleans()):
        text += draw(fields)
    return text.encode("utf-8", "surrogatepass")


@given(streams())
def test_a_scan_cut_at_any_place_reads_what_the_whole_text_says(stream: bytes) -> None:
    whole = NaiveReading(stream)

    for cut in range(len(stream) + 1):
        scanner = EventStream()
        scanner.feed(stream[:cut])
        scanner.feed(stream[cut:])

        assert scanner.tokens == whole.tokens
        assert scanner.errors == whole.errors
        assert scanner.done == whole.done
        assert scanner.usage == whole.usage


@given(streams())
def test_a_scan_byte_by_byte_equals_a_scan_at_once(stream: bytes) -> None:
    at_once, slow = EventStream(), EventStream()

    at_once.feed(stream)
    for position in range(len(stream)):
        slow.feed(stream[position : position + 1])

    assert (slow.tokens, slow.done, slow.errors, slow.error, slow.usage) == (
        at_once.tokens,
        at_once.done,
        at_once.errors,
        at_once.error,
        at_once.usage,
    )


@given(streams(), st.lists(st.integers(0, 300), max_size=5))
def test_a_gate_loses_nothing_and_stops_only_between_events(stream: bytes, cuts: list[int]) -> None:
    gate = EventStream()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    passed = b""

    for start, stop in pairwise(edges):
        passed += gate.feed(stream[start:stop])

        assert passed == stream[: len(passed)]
        assert not gate.torn
        assert passed == b"" or passed.endswith((b"\n\n", b"\n\r\n", b"\r\r"))
    assert passed + gate.flush() == stream
