"""What a browser might obey of an engine's headers does not reach it."""

import pytest

from kvmesh.transport.http.upstream.messages import Kind, UpstreamFailure
from kvmesh.transport.http.upstream.passed_headers import NOSNIFF, PLAIN
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import Header

JSON = (b"content-type", b"application/json")


def passed_headers(headers: list[Header], *, ours: bool) -> list[Header]:
    """Return what is passed on, whether or not it was made at once."""
    head = ResponseHead(200, headers)
    lines = head.lines(ours=ours)
    head.all_lines = head.foreign_lines = None
    assert head.lines(ours=ours) == lines
    found = [line.partition(b": ") for line in lines.removesuffix(b"\r\n").split(b"\r\n")]
    kept = [(name, value) for name, _, value in found]
    return [one for one in kept if one != (b"x-accel-buffering", b"no")]


@pytest.mark.parametrize(
    "name",
    [
        *(b"set-cookie", b"set-cookie2", b"location", b"content-location", b"refresh", b"link"),
        *(b"clear-site-data", b"strict-transport-security", b"alt-svc", b"www-authenticate"),
        *(b"access-control-allow-origin", b"access-control-anything-new", b"authentication-info"),
        *(b"content-security-policy", b"content-security-policy-report-only", b"nel"),
        *(b"cross-origin-opener-policy", b"cross-origin-resource-policy", b"report-to"),
        *(b"service-worker-allowed", b"sourcemap", b"sec-session-registration"),
        *(b"x-content-type-options", b"connection", b"date", b"x-request-id", b"content-length"),
    ],
)
def test_a_header_that_acts_for_the_origin_is_dropped(name: bytes) -> None:
    for ours in (True, False):
        kept = passed_headers([JSON, (name, b"1")], ours=ours)

        assert kept == [JSON, NOSNIFF]


def test_headers_of_the_api_are_kept() -> None:
    headers = [
        JSON,
        (b"retry-after", b"1"),
        (b"openai-processing-ms", b"4"),
        (b"x-ratelimit-remaining-tokens", b"9"),
        (b"cache-control", b"no-store"),
        (b"content-disposition", b"attachment"),
        (b"server", b"uvicorn"),
    ]

    assert passed_headers(headers, ours=False) == [*headers, NOSNIFF]


def test_headers_of_ours_are_a_routers_alone() -> None:
    forged = (b"x-kvmesh-worker", b"forged")

    assert passed_headers([JSON, forged], ours=False) == [JSON, NOSNIFF]
    assert passed_headers([JSON, forged], ours=True) == [JSON, forged, NOSNIFF]


@pytest.mark.parametrize(
    "value",
    [
        *(b"text/html", b"TEXT/HTML; charset=utf-8", b"application/xhtml+xml", b"image/svg+xml"),
        *(b"text/xml", b"application/xml", b"text/javascript", b"application/javascript"),
        *(b"application/wasm", b"text/css", b"application/pdf", b"multipart/x-mixed-replace"),
        *(b"text/cache-manifest", b"", b"json", b"application/json, text/html", b"*/*"),
        *(b"application/json;x=y, text/html", b"application/jsonx", b" ;text/plain"),
    ],
)
def test_what_a_browser_could_show_or_run_becomes_plain_text(value: bytes) -> None:
    kept = passed_headers([(b"content-type", value), (b"server", b"a")], ours=False)

    assert kept == [(b"server", b"a"), PLAIN, NOSNIFF]


@pytest.mark.parametrize("names", [b"x-hop, close", b"keep-alive,X-Hop", b",x-hop"])
def test_what_a_connection_header_names_is_of_one_hop(names: bytes) -> None:
    headers = [(b"x-hop", b"1"), JSON, (b"connection", b"close"), (b"connection", names)]

    assert passed_headers(headers, ours=True) == [JSON, NOSNIFF]
    assert passed_headers([JSON, (b"connection", b"content-type")], ours=True) == [NOSNIFF]


def test_an_event_stream_is_not_to_be_buffered() -> None:
    events, unbuffered = (b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")

    once = b"x-content-type-options: nosniff\r\nx-accel-buffering: no\r\n"
    assert ResponseHead(200, [events]).lines(ours=True).endswith(once)
    told = ResponseHead(200, [events, unbuffered]).lines(ours=True)
    assert told.endswith(b"x-accel-buffering: no\r\nx-content-type-options: nosniff\r\n")


@pytest.mark.parametrize(
    "value",
    [
        *(b"application/json", b"application/json; charset=utf-8", b"text/event-stream"),
        *(b"text/event-stream; charset=utf-8", b"Text/Plain", b"audio/mpeg", b"image/png"),
        *(b"application/x-ndjson", b"video/mp4", b"application/octet-stream", b"text/csv ;a=b"),
    ],
)
def test_a_type_of_an_api_stays(value: bytes) -> None:
    assert passed_headers([(b"content-type", value)], ours=False)[0] == (b"content-type", value)


@pytest.mark.parametrize(
    "kind", ["timeout", "refused", "reset", "truncated", "malformed", "busy", "status", "hung"]
)
def test_a_failure_is_told_without_its_address(kind: Kind) -> None:
    address = "http://10.1.2.3:8000"
    failure = UpstreamFailure("after_send", kind, f"{address}: [Errno 111]", address, status=503)

    for name in ("w0", ""):
        describe = failure.describe(name)
        assert describe.startswith(name or "upstream ")
        assert "10.1.2.3" not in describe
        assert "Errno" not in describe
        assert "{" not in describe
