"""What a client's `traceparent` says."""

import pytest

from kvmesh.transport.http.wire.trace import MOST_EVENTS, Parent, Trace, read_traceparent

TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "sampled"), [(b"00", False), (b"01", True), (b"02", False)])
def test_the_flag_says_whether_it_is_sampled(flags: bytes, sampled: bool) -> None:
    read = read_traceparent(b"00-%b-%b-%b" % (TRACE, SPAN, flags))

    assert read == Parent(TRACE, SPAN, sampled)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read_traceparent(b"cc-%b-%b-01-what the future" % (TRACE, SPAN)) is not None
    assert read_traceparent(b"cc-%b-%b-01" % (TRACE, SPAN)) is not None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00-%b-%b" % (TRACE, SPAN),
        b"00-%b-%b-01-more" % (TRACE, SPAN),
        b"ff-%b-%b-01" % (TRACE, SPAN),
        b"cc-%b-%b-01.more" % (TRACE, SPAN),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-01" % (TRACE.upper(), SPAN),
        b"00-%b-%b-zz" % (TRACE, SPAN),
    ],
)
def test_what_is_no_context_says_nothing(value: bytes) -> None:
    assert read_traceparent(value) is None


def test_events_are_bounded() -> None:
    kept: list[Trace] = []
    trace = Trace(TRACE, SPAN, b"", kept.append)
    for number in range(2 * MOST_EVENTS):
        trace.sent(f"http://10.0.0.{number}")

    trace.end("finished", 200)

    assert kept == [trace]
    assert (trace.attempts, len(trace.events)) == (2 * MOST_EVENTS, MOST_EVENTS)
