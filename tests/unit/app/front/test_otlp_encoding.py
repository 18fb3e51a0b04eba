"""What is written by hand is what protobuf reads."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.app.front.otlp_encoding import (
    MOST_TEXT,
    Envelope,
    Event,
    SpanData,
    encode_span,
    rejected_spans,
)
from kvmesh.errors import CodecError

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="opentelemetry-proto not installed",
)

ids = st.binary(min_size=8, max_size=8)
times = st.integers(0, 2**64 - 1)
names = st.text(max_size=40)
values = st.one_of(
    st.text(max_size=300),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
attributes = st.lists(st.tuples(names, values), max_size=8)
spans = st.builds(
    SpanData,
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=ids,
    parent_id=st.one_of(st.just(b""), ids),
    name=names,
    start_ns=times,
    end_ns=times,
    attributes=attributes,
    events=st.lists(st.builds(Event, times, names, attributes.map(tuple)), max_size=3),
    error=st.one_of(st.none(), names),
)


def plain(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def decoded(data: bytes) -> SpanData:
    request = trace_service.ExportTraceServiceRequest.FromString(data)
    (resource,) = request.resource_spans
    (scope,) = resource.scope_spans
    (span,) = scope.spans
    assert span.kind == span.SPAN_KIND_SERVER
    assert [(one.key, plain(one.value)) for one in resource.resource.attributes] == [
        ("service.name", "kvmesh-router")
    ]
    assert (scope.scope.name, scope.scope.version) == ("kvmesh", "1.0")
    failed = span.status.code == span.status.STATUS_CODE_ERROR
    return SpanData(
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        [(one.key, plain(one.value)) for one in span.attributes],
        [
            Event(
                one.time_unix_nano,
                one.name,
                tuple((each.key, plain(each.value)) for each in one.attributes),
            )
            for one in span.events
        ],
        span.status.message if failed else None,
    )


@given(spans)
def test_a_span_is_read_as_it_was_written(span: SpanData) -> None:
    envelope = Envelope([("service.name", "kvmesh-router")], "kvmesh", "1.0")

    assert decoded(envelope.request([encode_span(span)])) == span


def test_a_long_text_is_cut_and_half_a_pair_is_no_error() -> None:
    envelope = Envelope([("service.name", "kvmesh-router")], "kvmesh", "1.0")
    long, torn = "ä" * (MOST_TEXT + 1), "a\ud800b"
    span = SpanData(b"t" * 16, b"s" * 8, b"", torn, 1, 2, [("text", long)])

    read = decoded(envelope.request([encode_span(span)]))

    assert read.name == "a?b"
    assert read.attributes == [("text", "ä" * MOST_TEXT)]


@given(st.integers(0, 2**63 - 1), names)
def test_what_a_collector_rejects_is_read(rejected: int, why: str) -> None:
    reported = trace_service.ExportTraceServiceResponse()
    reported.partial_success.rejected_spans = rejected
    reported.partial_success.error_message = why

    assert rejected_spans(reported.SerializeToString()) == (rejected, why)
    assert rejected_spans(b"") == (0, "")


@given(st.binary(max_size=40))
def test_an_answer_that_is_none_is_an_error_of_ours(answer: bytes) -> None:
    try:
        rejected, why = rejected_spans(answer)
    except CodecError:
        return
    assert 0 <= rejected < 2**63
    assert len(why) <= MOST_TEXT


@pytest.mark.parametrize("answer", [b"\xff" * 10, b"\x0a\x05ab", b"\x0b", b"\x0a\x02\x08\xff"])
def test_torn_answers_are_refused(answer: bytes) -> None:
    with pytest.raises(CodecError, match="OTLP answer"):
        rejected_spans(answer)


def test_fields_of_other_versions_are_passed_over() -> None:
    later = b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x20\x01" + b"\x0a\x02\x08\x07"

    assert rejected_spans(later) == (7, "")
