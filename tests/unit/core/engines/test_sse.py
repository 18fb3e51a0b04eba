import pytest

from kvmesh.core.engines.sse import (
    MAX_EVENT_BYTES,
    MAX_HELD_BYTES,
    EventGate,
    SseScanner,
    Usage,
    error_status,
    find_usage,
)

TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" a"}}]}\n\n'
USAGE = (
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)


def scan(*pieces: bytes) -> SseScanner:
    scanner = SseScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner


def test_every_whole_event_counts_and_feed_returns_the_new_ones() -> None:
    scanner = SseScanner()

    assert scanner.feed(TOKEN) == 1
    assert scanner.feed(TOKEN * 3) == 3
    assert scanner.feed(TOKEN[:20]) == 0
    assert scanner.feed(TOKEN[20:]) == 1
    assert scanner.tokens == 5


def test_done_is_seen_only_as_an_event_of_its_own() -> None:
    assert scan(TOKEN, b"data: [DONE]\n\n").done
    assert scan(TOKEN + b"data: [DONE]\n\n").tokens == 1
    assert not scan(b'data: {"content":"data: [DONE]"}\n\n').done
    assert not scan(b'data: {"content":"\\n\\ndata: [DONE]\\n\\n"}\n\n').done


@pytest.mark.parametrize(
    "event", [b"data:[DONE]", b"data:  [DONE] ", b"event: end\ndata: [DONE]", b": ok\ndata: [DONE]"]
)
def test_the_end_may_be_written_otherwise_and_is_no_token(event: bytes) -> None:
    scanner = scan(TOKEN, event + b"\n\n")

    assert scanner.done
    assert scanner.tokens == 1


def test_usage_is_read_where_it_is_reported() -> None:
    assert scan(TOKEN, USAGE).usage == Usage(9, 4, 8)
    assert scan(TOKEN).usage is None
    assert scan(b'data: {"usage": null, "choices": []}\n\n').usage is None


def test_quoted_usage_and_errors_in_content_mean_nothing() -> None:
    scanner = scan(b'data: {"content":"\\"usage\\":{\\"prompt_tokens\\":1},\\"error\\":1"}\n\n')

    assert scanner.usage is None
    assert scanner.errors == 0
    assert scanner.tokens == 1


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"m","code":500}}\n\n',
        b'data: {"object":"error","message":"m","code":500}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
    ],
)
def test_error_events_of_all_dialects_are_told_from_tokens(event: bytes) -> None:
    scanner = scan(TOKEN, event)

    assert scanner.errors == 1
    assert scanner.tokens == 1
    assert scanner.error


@pytest.mark.parametrize("data", [b'{"error":null}', b'{"a":"error"}', b'["error"]', b'"error"x'])
def test_the_word_error_alone_is_no_error(data: bytes) -> None:
    scanner = scan(b"data: %b\n\n" % data)

    assert scanner.errors == 0
    assert scanner.tokens == 1


def test_anthropic_streams_count_deltas_and_fold_usage_from_both_ends() -> None:
    scanner = scan(
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":3,"cache_read_input_tokens":5,"output_tokens":1}}}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":2}}\n\n',
    )

    assert scanner.tokens == 3
    assert scanner.usage == Usage(8, 2, 5)


def test_comments_and_empty_data_are_no_events() -> None:
    assert scan(b": ping\n\n", b"data:\n\n", b"id: 3\n\n", b"\n\n\n").tokens == 0


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


def test_undecodable_usage_leaves_what_was_known() -> None:
    assert find_usage(b'{"usage":3}', Usage(1, 1, 1)) == Usage(1, 1, 1)


def test_a_gate_lets_whole_events_pass_untouched() -> None:
    gate = EventGate()

    assert gate.feed(TOKEN) is TOKEN
    assert gate.feed(TOKEN + TOKEN[:7]) == TOKEN
    assert gate.feed(TOKEN[7:12]) == b""
    assert gate.feed(TOKEN[12:]) == TOKEN
    assert gate.flush() == b""


@pytest.mark.parametrize("cut", range(len(b"data: [DONE]\n\n")))
def test_a_gate_knows_that_nothing_is_missing_behind_done(cut: int) -> None:
    gate = EventGate()
    done = b"data: [DONE]\n\n"
    gate.feed(TOKEN)
    gate.feed(done[:cut])
    before = gate.is_complete()
    gate.feed(done[cut:])

    assert (before, gate.is_complete()) == (False, True)
    assert gate.feed(TOKEN) is TOKEN
    assert not gate.is_complete()
    assert gate.feed(done) is done
    assert gate.is_complete()


def test_a_gate_gives_up_what_it_holds_at_the_end() -> None:
    gate = EventGate()
    gate.feed(b"data: cut")

    assert gate.flush() == b"data: cut"
    assert gate.flush() == b""


def test_a_gate_passes_an_overlong_event_in_parts_and_says_so() -> None:
    gate = EventGate()
    long = b"x" * (MAX_HELD_BYTES + 1)

    seen = [(gate.feed(data), gate.torn) for data in (long, b"y\n\n", long, b"z", b"\n\nmore")]

    assert seen == [(long, True), (b"y\n\n", False), (long, True), (b"", True), (b"z\n\n", False)]


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_any_end_of_line_may_be_cut_in_the_middle(end: bytes) -> None:
    stream = (b"data: {}" + end + end) * 2

    for cut in range(len(stream)):
        assert scan(stream[:cut], stream[cut:], b"").tokens == 2


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_a_gate_knows_every_kind_of_blank_line(end: bytes) -> None:
    gate = EventGate()
    event = b"data: {}" + end + end

    assert gate.feed(event + b"data: {}" + end) == event
    assert gate.feed(end) == b"data: {}" + end + end


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


def test_usage_without_output_tokens_is_taken_as_it_is() -> None:
    found = find_usage(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5}}')

    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (5, 0)


def test_no_more_of_a_prompt_is_cached_than_it_has() -> None:
    found = find_usage(
        b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,'
        b'"prompt_tokens_details":{"cached_tokens":9}}}'
    )

    assert found is not None
    assert (found.prompt_tokens, found.cached_tokens) == (5, 5)
