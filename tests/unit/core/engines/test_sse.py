import pytest

from kvmesh.core.engines.event_stream import MAX_EVENT_BYTES, EventStream
from kvmesh.core.engines.sse import (
    Usage,
    error_status,
    find_usage,
)

TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" a"}}]}\n\n'


def scan(*pieces: bytes) -> EventStream:
    scanner = EventStream()
    for piece in pieces:
        scanner.feed(piece)
    return scanner


def test_counts_of_usage_never_fall() -> None:
    before = Usage(3, 5, None)

    assert find_usage(b'{"usage":{"prompt_tokens":2,"completion_tokens":1}}', before) == before


@pytest.mark.parametrize("data", [b'{"error":null}', b'{"a":"error"}', b'["error"]', b'"error"x'])
def test_the_word_error_alone_is_no_error(data: bytes) -> None:
    scanner = scan(b"data: %b\n\n" % data)

    assert (scanner.errors, scanner.tokens) == (0, 1)


def test_anthropic_streams_count_deltas_and_fold_usage_from_both_ends() -> None:
    scanner = scan(
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":3,"cache_read_input_tokens":5,"output_tokens":1}}}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":2}}\n\n',
    )

    assert (scanner.tokens, scanner.usage) == (3, Usage(8, 2, 5))


def test_an_overlong_event_is_counted_but_not_kept() -> None:
    long = b'data: {"usage":{"prompt_tokens":1},"x":"' + b"x" * MAX_EVENT_BYTES

    scanner = scan(long, b"x" * 10, b'"}\n\n', TOKEN)

    assert scanner.tokens == 2
    assert scanner.usage is None


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":2}}', Usage(3, 2, None)),
        (
            b'{"response":{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4}}}}',
            Usage(7, 0, 4),
        ),
        (
            b'{"message":{"usage":{"input_tokens":1,"cache_read_input_tokens":6,"output_tokens":2}}}',
            Usage(7, 2, 6),
        ),
        (b'{"usage":{"prompt_tokens":3,"total_tokens":3}}', Usage(3, 0, None)),
        (b'{"message":{}}', None),
        (b'{"usage":null}', None),
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (b"{", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_usage_of_a_whole_body_is_found_in_every_api(body: bytes, usage: Usage | None) -> None:
    assert find_usage(body) == usage


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_any_end_of_line_may_be_cut_in_the_middle(end: bytes) -> None:
    stream = (b"data: {}" + end + end) * 2

    for cut in range(len(stream)):
        assert scan(stream[:cut], stream[cut:], b"").tokens == 2


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b'{"error":{"message":"too long","code":400}}', 400),
        (b'{"error":{"message":"too long","code":"503"}}', 503),
        (b'{"object":"error","code":422}', 422),
        (b'{"error":{"code":200}}', 0),
        (b'{"error":{"code":"e"}}', 0),
        (b'{"error":{"code":null}}', 0),
        (b'{"error":{"code":1e400}}', 0),
        (b'{"error":"no"}', 0),
        (b"\xff", 0),
        (b"", 0),
        (b"[" * 100_000, 0),
    ],
)
def test_an_error_event_may_name_its_status(data: bytes, status: int) -> None:
    assert error_status(data) == status


@pytest.mark.parametrize(
    ("body", "response"),
    [
        (b'{"id":"resp_1","object":"response","usage":{"input_tokens":3}}', "resp_1"),
        (b'{"response":{"id":"resp_1","usage":{"input_tokens":3}}}', "resp_1"),
        (b'{"id":"chatcmpl-1","object":"chat.completion","usage":{"prompt_tokens":3}}', ""),
        (b'{"id":7,"object":"response","usage":{"input_tokens":3}}', ""),
        (b'{"response":{"id":null,"usage":{"input_tokens":3}}}', ""),
        (b'{"message":{"id":7,"usage":{"input_tokens":3}}}', ""),
    ],
)
def test_an_answer_that_can_be_gone_on_from_has_its_id(body: bytes, response: str) -> None:
    usage = find_usage(body)

    assert usage is not None
    assert (usage.response, usage.prompt_tokens) == (response, 3)


def test_no_more_of_a_prompt_is_cached_than_it_has() -> None:
    found = find_usage(
        b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,'
        b'"prompt_tokens_details":{"cached_tokens":9}}}'
    )

    assert found is not None
    assert (found.prompt_tokens, found.cached_tokens) == (5, 5)


def test_timings_stand_for_usage_that_a_client_did_not_ask_for() -> None:
    timings = b'"timings":{"cache_n":30,"prompt_n":12,"prompt_ms":1.5,"predicted_n":7}'
    end = b'{"choices":[{"index":0,"text":"","finish_reason":"stop"}],%b}' % timings

    assert find_usage(end) == Usage(42, 7, 30, stop="end")
    scanner = scan(TOKEN, b"data: %b\n\n" % end, b"data: [DONE]\n\n")
    assert scanner.usage == Usage(42, 7, 30, stop="end")
    assert find_usage(b'{"usage":{"prompt_tokens":9},%b}' % timings) == Usage(9)
    assert find_usage(b'{"timings":{"cache_n":30}}') is None
    assert find_usage(b'{"timings":{"prompt_n":30}}') is None
