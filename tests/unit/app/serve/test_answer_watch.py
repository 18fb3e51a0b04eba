from kvmesh.app.serve.answer_watch import GROW_TOKENS, MAX_SCANNED_BYTES, AnswerWatch
from kvmesh.core.engines.sse import Usage

EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"),)
JSON = ((b"content-type", b"application/json"),)
TOKEN = b'data: {"choices":[]}\n\n'


def test_a_booking_is_told_of_the_first_token_and_then_now_and_again() -> None:
    watch = AnswerWatch(EVENTS)

    told = [watch.feed(TOKEN) for _ in range(2 * GROW_TOKENS + 2)]

    assert [tokens for tokens in told if tokens] == [1, 1 + GROW_TOKENS, 1 + 2 * GROW_TOKENS]
    assert watch.usage() is None


def test_a_stream_tells_its_usage_in_its_last_chunk() -> None:
    watch = AnswerWatch(EVENTS)

    watch.feed(TOKEN)
    watch.feed(b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\ndata: [DONE]\n\n')

    assert watch.usage() == Usage(prompt_tokens=7, completion_tokens=1)


def test_a_whole_answer_tells_its_usage_if_it_is_not_too_long() -> None:
    short, long = AnswerWatch(JSON), AnswerWatch(JSON)
    usage = b'{"usage":{"prompt_tokens":7}}'

    told = [short.feed(usage[:9]), short.feed(usage[9:]), long.feed(b" " * MAX_SCANNED_BYTES)]
    told.append(long.feed(usage))

    assert told == [0] * 4
    assert short.usage() == Usage(prompt_tokens=7)
    assert long.usage() is None
    assert AnswerWatch(JSON).usage() is None
