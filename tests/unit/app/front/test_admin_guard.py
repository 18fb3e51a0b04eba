"""Who may change a running router without a token: whoever comes from this machine alone."""

from pathlib import Path

import pytest

from kvmesh.app.front.admin_guard import AdminGuard, hops, is_loopback
from kvmesh.errors import RequestError
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.transport.http.server.request import Request


def asked(client: str, *headers: tuple[str, str]) -> Request:
    request = Request("PUT", b"/admin/admission", [(n.encode(), v.encode()) for n, v in headers])
    request.client = client
    return request


LOCAL = [
    asked("127.0.0.1"),
    asked("::1"),
    asked("::ffff:127.0.0.1"),
    asked("127.0.0.1", ("x-forwarded-for", "127.0.0.1, ::1")),
    asked("127.0.0.1", ("forwarded", "for=127.0.0.1;proto=http")),
    asked("127.0.0.1", ("forwarded", 'For="[::1]:4711", for=127.0.0.9:80')),
    asked("127.0.0.1", ("x-real-ip", "127.0.0.1")),
]
ELSEWHERE = [
    asked(""),
    asked("10.0.0.7"),
    asked("127.0.0.1", ("x-forwarded-for", "10.0.0.7")),
    asked("127.0.0.1", ("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "10.0.0.7")),
    asked("127.0.0.1", ("x-forwarded-for", "127.0.0.1.evil.example")),
    asked("127.0.0.1", ("x-real-ip", "10.0.0.7")),
    asked("127.0.0.1", ("forwarded", "for=10.0.0.7")),
    asked("127.0.0.1", ("forwarded", 'for="[2001:db8::7]:4711"')),
    asked("127.0.0.1", ("forwarded", "for=127.0.0.1"), ("forwarded", "for=10.0.0.7")),
    asked("127.0.0.1", ("forwarded", "for=127.0.0.1, for=10.0.0.7")),
    asked("127.0.0.1", ("forwarded", 'for=127.0.0.1;x=", for="[2001:db8::7]"')),
    asked("127.0.0.1", ("forwarded", "for=127.0.0.1;for=10.0.0.7")),
    asked("127.0.0.1", ("forwarded", "for=unknown")),
    asked("127.0.0.1", ("forwarded", "for=_hidden")),
    asked("127.0.0.1", ("forwarded", "proto=https;by=127.0.0.1")),
    asked("127.0.0.1", ("forwarded", 'for="127.0.0.1')),
]


@pytest.mark.parametrize("request_", LOCAL, ids=lambda request: str(hops(request)))
def test_who_comes_from_this_machine_alone_may_change_it(request_: Request) -> None:
    AdminGuard(AdmissionSettings()).check(request_, "/admin/admission")


@pytest.mark.parametrize("request_", ELSEWHERE, ids=lambda request: str(hops(request)))
def test_a_hop_elsewhere_in_any_header_may_not(request_: Request) -> None:
    with pytest.raises(RequestError, match="only this machine") as caught:
        AdminGuard(AdmissionSettings()).check(request_, "/admin/admission")
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        (("sec-fetch-site", "cross-site"),),
        (("sec-fetch-site", "same-site"),),
        (("host", "127.0.0.1:8000"), ("origin", "https://evil.example")),
        (("host", "127.0.0.1:8000"), ("origin", "null")),
        (("host", "evil.example:8000"), ("origin", "http://evil.example:8000")),
        (("host", "127.0.0.1.evil.example"), ("origin", "http://127.0.0.1.evil.example")),
    ],
)
def test_pages_of_other_sites_may_not_though_the_browser_is_here(
    headers: tuple[tuple[str, str], ...],
) -> None:
    with pytest.raises(RequestError, match="no page of another site") as caught:
        AdminGuard(AdmissionSettings()).check(asked("127.0.0.1", *headers), "/admin/policy")
    assert caught.value.status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "a.localhost", "[::1]:80"])
def test_a_page_of_this_machine_may(host: str) -> None:
    own = asked("127.0.0.1", ("host", host), ("origin", f"http://{host}"))
    AdminGuard(AdmissionSettings()).check(own, "/admin/policy")


def test_who_knows_the_token_may_from_any_page(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    request = asked(
        "10.0.0.7", ("origin", "https://ops.example"), ("x-kvmesh-admin-token", "secret")
    )
    AdminGuard(AdmissionSettings(admin_token_file=file)).check(request, "/admin/policy")


@pytest.mark.parametrize("address", ["127.evil.example", "localhost", "", "::ffff:10.0.0.1", "1:2"])
def test_what_is_no_loopback_address_is_none(address: str) -> None:
    assert not is_loopback(address)
