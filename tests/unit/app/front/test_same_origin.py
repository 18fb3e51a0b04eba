"""Which requests a page of another site can have forced on its visitor's browser."""

import pytest

from kvmesh.app.front.same_origin import refuse_forced
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

HOST = (b"host", b"mesh.example:8000")
EVIL = (b"origin", b"https://evil.example")
FOREIGN = (b"sec-fetch-site", b"cross-site")
JSON = (b"content-type", b"application/json; charset=utf-8")
FORM = (b"content-type", b"application/x-www-form-urlencoded")
TEXT = (b"content-type", b"text/plain;charset=UTF-8")


def asked(*headers: tuple[bytes, bytes], method: str = "POST") -> Request:
    return Request(method, b"/v1/chat/completions", [HOST, *headers])


@pytest.mark.parametrize(
    "headers",
    [
        [TEXT, EVIL],
        [FORM, EVIL],
        [EVIL],
        [TEXT, FOREIGN],
        [TEXT, (b"sec-fetch-site", b"same-site")],
        [(b"content-type", b"multipart/form-data; boundary=a"), EVIL, FOREIGN],
        [(b"content-type", b"text/plain; x=application/json"), EVIL],
        [(b"content-type", b"application/jsonx"), EVIL],
        [TEXT, (b"origin", b"null")],
        [TEXT, (b"origin", b"http://mesh.example:8001")],
        [TEXT, (b"origin", b"http://[")],
    ],
)
def test_what_a_page_sends_without_asking_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(RequestError, match=r"--cors-origin") as caught:
        refuse_forced(asked(*headers))

    assert (caught.value.status, caught.value.code) == (403, "foreign_page")


@pytest.mark.parametrize(
    "headers",
    [
        [JSON, EVIL, FOREIGN],  # its browser asked before: who was not allowed does not send it
        [FORM],  # curl -d
        [TEXT],
        [],
        [TEXT, (b"origin", b"http://mesh.example:8000")],
        [FORM, (b"sec-fetch-site", b"same-origin"), EVIL],
        [FORM, (b"sec-fetch-site", b"none")],
        [FORM, EVIL, (b"x-forwarded-host", b"evil.example")],  # a proxy's other name
    ],
)
def test_clients_and_own_pages_may_send_anything(headers: list[tuple[bytes, bytes]]) -> None:
    refuse_forced(asked(*headers))


def test_a_page_may_fetch_what_it_cannot_read() -> None:
    for method in ("GET", "HEAD", "OPTIONS"):
        refuse_forced(asked(EVIL, FOREIGN, method=method))
