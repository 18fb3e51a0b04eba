from collections.abc import Callable

import msgspec
import pytest

from kvmesh._native import EventStream as CompiledStream
from kvmesh.core.chat.answer_json import MAX_TOOL, ending_of, read_answer
from kvmesh.core.engines.event_stream import EventStream, new_event_stream
from kvmesh.core.engines.sse import Usage, find_usage

Make = Callable[[], EventStream | CompiledStream]
CALL = {"type": "function", "id": "c1", "function": {"name": "Bash", "arguments": "{}"}}


def ending(**fields: object) -> tuple[str, str]:
    answer = read_answer(msgspec.json.encode(fields))
    assert answer is not None
    return ending_of(answer)


@pytest.mark.parametrize(
    ("word", "stop"),
    [
        ("tool_calls", "tool"),
        ("function_call", "tool"),
        ("stop", "end"),
        ("content_filter", "end"),
        ("length", "length"),
        ("abort", ""),
        (None, ""),
        ({"type": "stop"}, ""),
    ],
)
def test_a_choice_says_why_it_ended(word: object, stop: str) -> None:
    assert ending(choices=[{"finish_reason": word, "message": {"content": "a"}}]) == (stop, "")
    assert ending(choices=[{"finish_reason": word, "delta": {}}]) == (stop, "")


def test_the_tool_called_last_is_told_of_a_chat_whole_or_in_parts() -> None:
    second = CALL | {"function": {"name": "Read"}}

    whole = {"finish_reason": "tool_calls", "message": {"tool_calls": [CALL, second]}}
    part = {"finish_reason": None, "delta": {"tool_calls": [CALL | {"index": 0}]}}
    more = {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1"}}, {}]}}

    assert (ending(choices=[whole]), ending(choices=[part])) == (("tool", "Read"), ("", "Bash"))
    assert ending(choices=[more]) == ("", "")
    assert ending(choices=[{"message": {"tool_calls": None}}, {"text": "a"}]) == ("", "")


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"status": "completed", "output": []}, ("end", "")),
        (
            {"status": "completed", "output": [{"type": "function_call", "name": "f"}]},
            ("tool", "f"),
        ),
        (
            {"status": "completed", "output": [{"type": "local_shell_call", "name": None}]},
            ("tool", "local_shell_call"),
        ),
        (
            {
                "status": "incomplete",
                "output": [],
                "incomplete_details": {"reason": "max_output_tokens"},
            },
            ("length", ""),
        ),
        ({"status": "in_progress", "output": [], "incomplete_details": None}, ("", "")),
    ],
)
def test_responses_tell_it_by_their_status_and_output(
    fields: dict[str, object], reported: tuple[str, str], inner: bool
) -> None:
    whole = {"object": "response", "tools": [{"type": "function", "name": "never called"}]} | fields

    assert (ending(type="x", response=whole) if inner else ending(**whole)) == reported


@pytest.mark.parametrize("name", ["", "a\nb", "a" * (MAX_TOOL + 1), 7, None, ["a"]])
def test_what_is_no_name_names_no_tool(name: object) -> None:
    call = {"type": "tool_use", "name": name}

    assert ending(choices=[{"delta": {"tool_calls": [{"function": {"name": name}}]}}]) == ("", "")
    assert ending(content_block=call) == ("", "tool_use")
    assert ending(content_block={"type": [], "name": "f"}) == ("", "")


@pytest.mark.parametrize(
    "odd",
    [
        b'"choices":{}',
        b'"choices":[3]',
        b'"content":"text"',
        b'"delta":"text"',
        b'"output":7',
        b'"message":{"output":3}',
        b'"response":{"incomplete_details":"x"}',
    ],
)
def test_counts_are_read_where_the_rest_is_of_no_known_form(odd: bytes) -> None:
    body = b'{"usage":{"prompt_tokens":3},"stop_reason":"end_turn",' + odd + b"}"

    answer = read_answer(body)

    assert answer is not None
    assert (ending_of(answer), find_usage(body)) == (("", ""), Usage(3))


@pytest.mark.parametrize("make", [EventStream, new_event_stream])
@pytest.mark.parametrize("space", [b"", b" "])
def test_a_stream_tells_why_it_ended_with_and_without_usage(make: Make, space: bytes) -> None:
    stream = make()
    call = msgspec.json.encode({"choices": [{"delta": {"tool_calls": [CALL]}}]})
    end = b'{"choices":[{"delta":{},"finish_reason":%b"stop","stop_reason":null}]}' % space
    usage = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}'

    seen = []
    for data in (b'{"choices":[{"finish_reason":null}]}', call, end, usage, b"[DONE]"):
        stream.feed(b"data: %b\n\n" % data)
        seen.append(stream.usage)

    assert seen == [
        None,
        Usage(tool="Bash"),
        Usage(stop="tool", tool="Bash"),
        Usage(9, 4, stop="tool", tool="Bash"),
        Usage(9, 4, stop="tool", tool="Bash"),
    ]
    assert stream.tokens == 4
