import pytest

from kvmesh_lab.replay.answer import AnswerReader

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":64}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def read(*parts: bytes) -> AnswerReader:
    reader = AnswerReader()
    for number, part in enumerate(parts):
        reader.feed(part, float(number))
    return reader


def test_tokens_are_timed_and_the_role_chunk_is_none() -> None:
    reader = read(ROLE, TOKEN, LAST, USAGE, DONE)

    assert reader.token_times == [1.0, 2.0]
    assert reader.complete
    assert (reader.prompt_tokens, reader.cached_tokens, reader.output_tokens) == (100, 64, 2)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_bytes_may_be_split_anywhere(size: int) -> None:
    stream = ROLE + TOKEN + b": ping\n\n" + LAST + USAGE + DONE

    reader = read(*(stream[start : start + size] for start in range(0, len(stream), size)))

    assert len(reader.token_times) == 2
    assert reader.cached_tokens == 64
    assert reader.complete
    assert reader.stream_error == ""


@pytest.mark.parametrize(
    "choice",
    [
        b'{"text":"a"}',
        b'{"delta":{"reasoning_content":"hm"}}',
        b'{"delta":{"reasoning":"hm"}}',
        b'{"delta":{"tool_calls":[{"index":0}]}}',
    ],
)
def test_text_reasoning_and_tool_calls_are_tokens(choice: bytes) -> None:
    assert read(b'data: {"choices":[' + choice + b"]}\r\n\r\n").token_times == [0.0]


def test_an_error_in_the_stream_is_kept() -> None:
    reader = read(TOKEN, b'data: {"error":{"message":"engine died"}}\n\n')

    assert "engine died" in reader.stream_error
    assert not reader.complete


def test_garbage_is_an_error_and_the_first_one_stays() -> None:
    reader = read(b"data: {nonsense\n\n", b'data: {"choices": 5}\n\n')

    assert reader.stream_error.startswith("malformed chunk: JSON is malformed")
