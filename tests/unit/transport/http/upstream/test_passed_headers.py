"""What a browser might obey of an engine's headers does not reach it."""

import pytest

from kvmesh.transport.http.upstream.messages import Kind, UpstreamFailure
from kvmesh.transport.http.upstream.passed_headers import NOSNIFF, PLAIN, passed_headers

JSON = (b"content-type", b"application/json")


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


def test_two_types_are_none() -> None:
    assert passed_headers([JSON, (b"content-type", b"text/html")], ours=True) == [PLAIN, NOSNIFF]


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


def test_a_response_without_a_type_gets_none() -> None:
    assert passed_headers([(b"server", b"a")], ours=False) == [(b"server", b"a"), NOSNIFF]


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
