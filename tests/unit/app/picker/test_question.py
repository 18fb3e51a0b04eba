import pytest

from kvmesh.app.picker.question import RequestHead, read_head
from kvmesh.transport.grpc.extproc_messages import RequestHeaders
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.wire.headers import Header

POST: list[Header] = [(b":method", b"POST"), (b":path", b"/v1/models?a=b")]
LIMITS = HttpLimits(max_headers=8, max_header_bytes=4096, max_body_bytes=1000)


def read(*headers: Header, limits: HttpLimits = LIMITS) -> RequestHead:
    return read_head(
        RequestHeaders([*headers], end_of_stream=False, subset=None, modes=None, attributes=None),
        "10.0.0.7",
        limits,
    )


def test_a_head_is_put_in_the_words_of_http() -> None:
    head = read(*POST, (b":authority", b"gw:80"), (b":scheme", b"https"), (b"accept", b"*/*"))

    request = head.request
    assert (request.method, request.path, request.query) == ("POST", "/v1/models", "a=b")
    assert request.headers == [(b"accept", b"*/*"), (b"host", b"gw:80")]
    assert (request.client, request.secure) == ("10.0.0.7", True)
    assert (head.problem, head.removed) == (None, ())


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b":method", b"POST")],
        [(b":path", b"/")],
        [(b":method", b"PO ST"), (b":path", b"/")],
        [(b":method", b"P\xc3\xb6st"), (b":path", b"/")],
        [(b":method", b"POST"), (b":path", b"nowhere")],
        [(b":method", b"POST"), (b":path", b"/\xff")],
        [(b":method", b"POST"), (b":path", b"/a b")],
        [(b":method", b"POST"), (b":path", b"/a\r\nx: y")],
    ],
)
def test_what_is_no_method_and_path_is_refused(headers: list[Header]) -> None:
    problem = read(*headers).problem

    assert problem is not None
    assert problem.status == 400


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ((b"content-length", b"1000"), None),
        ((b"content-length", b"1001"), 413),
        ((b"content-length", b"1" * 60), 413),
        ((b"content-length", b"-1"), None),
        ((b"x", b"y" * 5000), 431),
    ],
)
def test_what_is_too_large_is_refused(header: Header, status: int | None) -> None:
    problem = read(*POST, header).problem

    assert (None if problem is None else problem.status) == status


def test_headers_without_end_are_refused() -> None:
    problem = read(*POST, *[(b"x", b"y")] * 7).problem

    assert problem is not None
    assert problem.status == 431


def test_framing_is_the_gateways() -> None:
    head = read(*POST, (b"content-length", b"3"), (b"transfer-encoding", b"chunked"))

    assert head.request.headers == []
