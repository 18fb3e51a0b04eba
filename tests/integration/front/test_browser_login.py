"""A browser's user shows a key once: what the cookie opens, and above all what it does not."""

import contextlib
from collections.abc import Mapping
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.front.browser_login import MOST_BYTES, cookie_of, without_cookie
from kvmesh.app.meta.command import MetaServer
from kvmesh.core.admission.failed_logins import BURST
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.transport.http.server.request import Request
from tests.integration.support.live_router import free_port, serving
from tests.integration.support.two_tenants import Kind, Tenants, chat, tenants
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

FORM = {"content-type": "application/x-www-form-urlencoded"}
OWN = {"sec-fetch-site": "same-origin"}


async def log_in(door: Tenants, holder: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    key = door.keys.get(holder, holder)
    async with httpx.AsyncClient(base_url=door.url, timeout=60) as client:
        return await client.post("/login", content=f"key={key}", headers=FORM | named)


async def cookie(door: Tenants, holder: str) -> dict[str, str]:
    """Log in, and return the header a browser sends from then on."""
    answer = await log_in(door, holder)
    assert answer.status_code == 303, answer.text
    (found,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return {"cookie": f"other=1; {found.key}={found.value}; more=2"}


async def status(
    door: Tenants, method: str, path: str, headers: Mapping[str, str], body: object = None
) -> int:
    answer = await door.http.request(method, path, headers=dict(headers), json=body)
    return answer.status_code


@pytest.mark.parametrize("kind", ["router", "meta, proxy key"])
async def test_a_cookie_shows_what_its_key_may_see_and_does_nothing(
    kind: Kind, tmp_path: Path
) -> None:
    async with tenants(kind, tmp_path, apart=False) as door:
        for holder in ("ann", "ben"):
            await door.chat(holder, f"hello of {holder}")
        entered = await log_in(door, "ann")
        ann, boss = await cookie(door, "ann"), await cookie(door, "boss")
        await until(lambda: counted(door, boss))
        seen, whole = await overview(door, ann), await overview(door, boss)
        session = (await door.http.get("/session", headers=ann)).json()
        reads = {
            path: await status(door, "GET", path, ann)
            for path in ("/", "/dashboard/dashboard.css", "/v1/decisions", "/v1/status", "/metrics")
        }
        does = {
            path: await status(door, "POST", path, boss, chat("on whose behalf?"))
            for path in ("/v1/chat/completions", "/v1/route", "/admin/policy", "/admin/admission")
        }
        does["models"] = await status(door, "GET", "/v1/models", boss)
        does["policy"] = await status(door, "GET", "/admin/policy", boss)
        metrics = await status(door, "GET", "/metrics", boss)

    assert entered.headers["location"] == "/dashboard"
    flags = {one.strip().lower() for one in entered.headers["set-cookie"].split(";")[1:]}
    assert flags == {"path=/", "max-age=43200", "httponly", "samesite=strict"}
    assert door.keys["ann"] not in entered.headers["set-cookie"]
    assert session == {
        "login": True,
        "signed_in": True,
        "tenant": "kitchen",
        "roles": ["infer", "view"],
    }
    assert reads == {
        **dict.fromkeys(("/", "/dashboard/dashboard.css", "/v1/decisions", "/v1/status"), 200),
        "/metrics": 403,
    }
    assert set(does.values()) == {401}, does
    assert metrics == 200
    assert [one["tenant"] for one in seen["tenants"]] == ["kitchen"]
    assert {one["tenant"] for one in whole["tenants"]} == {"kitchen", "cellar"}
    assert (seen["models"], seen["traffic"]) == ([], None)
    assert [one["model"] for one in whole["models"]] == ["mock"]
    assert whole["traffic"]["requests_per_s"] > 0.0


async def counted(door: Tenants, headers: Mapping[str, str]) -> bool:
    """Return whether both tenants are in the overview."""
    return len((await overview(door, headers))["tenants"]) == 2


async def is_answered(door: Tenants, headers: Mapping[str, str], wanted: int) -> bool:
    return await status(door, "GET", "/v1/overview", headers) == wanted


async def overview(door: Tenants, headers: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = (await door.http.get("/v1/overview", headers=dict(headers))).json()
    return found


async def test_pages_of_other_sites_get_nothing_by_a_cookie_or_a_password(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        boss = await cookie(door, "boss")
        host = door.url.removeprefix("http://")
        views = [
            await status(door, "GET", "/v1/overview", boss | more)
            for more in (
                OWN,
                {"sec-fetch-site": "none"},
                {"origin": f"http://{host}"},
                {"sec-fetch-site": "cross-site"},
                {"sec-fetch-site": "same-site"},
                {"origin": "http://evil.example"},
                {"origin": "null"},
                {"origin": "http://[evil"},
            )
        ]
        logins = [
            (await log_in(door, "boss", **more)).status_code
            for more in (
                {"sec_fetch_site": "cross-site"},
                {"origin": "http://evil.example"},
                {"origin": "null"},
                {"sec_fetch_site": "same-origin", "origin": "null"},
            )
        ]
        foreign = boss | {"sec-fetch-site": "cross-site"}
        logout = await status(door, "POST", "/logout", foreign)
        still = await status(door, "GET", "/v1/overview", boss)
        reported = (await door.http.get("/session", headers=foreign)).json()
        basic = [
            (
                await door.http.post(
                    "/v1/chat/completions",
                    json=chat("x"),
                    auth=("u", door.keys["boss"]),
                    headers=headers,
                )
            ).status_code
            for headers in ({"sec-fetch-site": "cross-site"}, {})
        ]

    assert views == [200, 200, 200, 401, 401, 401, 401, 401]
    assert logins == [403, 403, 403, 303]
    assert (logout, still, reported["signed_in"]) == (403, 200, False)
    assert basic == [401, 200]


async def test_who_logs_out_is_out_and_so_is_whoever_has_the_cookie(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        first, second = await cookie(door, "ann"), await cookie(door, "ann")
        before = await status(door, "GET", "/v1/overview", first)
        left = await door.http.post("/logout", headers=first | OWN)
        after = await status(door, "GET", "/v1/overview", first)
        other = await status(door, "GET", "/v1/overview", second)
        nobody = await door.http.post("/logout", headers=OWN)
        page = await door.http.get("/dashboard", headers=first | {"accept": "text/html"})

    assert (before, after, other) == (200, 401, 200)
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    assert "max-age=0" in left.headers["set-cookie"].lower()
    assert nobody.status_code == 303
    assert (page.status_code, page.headers["content-type"][:9]) == (401, "text/html")
    assert "API key" in page.text


async def test_a_session_is_over_when_its_key_is_taken_away(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        ann, ben = await cookie(door, "ann"), await cookie(door, "ben")
        file = tmp_path / "keys.toml"
        entries = file.read_text().split("\n\n")
        file.write_text("\n\n".join(one for one in entries if 'keys."ann"]' not in one))
        await until(lambda: is_answered(door, ann, 401))
        other = await status(door, "GET", "/v1/overview", ben)

    assert other == 200


async def test_keys_that_are_none_are_refused_and_soon_not_even_looked_at(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        blind = await log_in(door, "ann's program")
        wrong = [(await log_in(door, f"kvm-{number}")).status_code for number in range(int(BURST))]
        late = await log_in(door, "kvm-late")
        right = await log_in(door, "boss")
        elsewhere = await log_in(door, "boss", x_forwarded_for="10.2.0.1")
        bearer = await door.send("boss", "GET", "/v1/overview")

    assert (blind.status_code, "--role view" in blind.text) == (403, True)
    assert set(wrong) == {401}
    assert (late.status_code, right.status_code) == (429, 429)
    assert 0 < int(late.headers["retry-after"]) <= 7
    assert "set-cookie" not in late.headers
    assert (elsewhere.status_code, bearer.status_code) == (303, 200)


async def test_bodies_that_are_no_login(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        posts = [
            await door.http.post("/login", content=body, headers=headers)
            for body, headers in (
                (b"", FORM),
                (b"key=", FORM),
                (b"&".join([b"key=x"] * 50), FORM),
                (b"\xff\xfe=%zz", FORM),
                (b"{", {"content-type": "application/json"}),
                (b'{"key": 5}', {"content-type": "application/json"}),
                (b"key=" + b"x" * MOST_BYTES, FORM),
                (b"key=" + b"x" * 1_000_000, FORM),
            )
        ]
        script = await door.http.post("/login", json={"key": door.keys["ann"]}, headers=OWN)
        methods = [
            await door.http.request(method, path)
            for method, path in (("PUT", "/login"), ("GET", "/logout"), ("POST", "/session"))
        ]
        page = await door.http.get("/login")

    assert [one.status_code for one in posts] == [401] * 6 + [413] * 2
    assert posts[4].json()["error"]["type"] == "authentication_error"
    assert (script.status_code, "kvmesh-session" in script.headers["set-cookie"]) == (204, True)
    assert [one.status_code for one in methods] == [405] * 3
    assert [one.headers["allow"] for one in methods] == ["GET or POST", "POST", "GET"]
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "form-action 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script" not in page.text


async def test_files_of_the_page_are_none_of_a_keys_requests(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        file, bearer = tmp_path / "keys.toml", {"authorization": f"Bearer {door.keys['ann']}"}
        text = file.read_text()
        file.write_text(
            text.replace('tenant = "kitchen"', 'tenant = "kitchen"\nrequests_per_minute = 2', 1)
        )
        await until(lambda: is_answered(door, bearer, 429))
        ann = await cookie(door, "ann")
        files = [await status(door, "GET", "/dashboard/dashboard.css", ann) for _ in range(5)]
        view = await status(door, "GET", "/v1/overview", ann)

    assert (set(files), view) == ({200}, 429)


async def test_behind_tls_the_cookie_is_this_hosts_and_goes_by_tls_alone(tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        entered = await log_in(door, "ann", x_forwarded_proto="https")
        line = entered.headers["set-cookie"]
        sent = {"cookie": line.partition(";")[0]}
        plain = await status(door, "GET", "/v1/overview", sent)
        tls = await status(door, "GET", "/v1/overview", sent | {"x-forwarded-proto": "https"})

    assert line.startswith("__Host-kvmesh-session=")
    assert line.endswith("; HttpOnly; SameSite=Strict; Secure")
    assert (plain, tls) == (401, 200)


async def test_two_doors_with_one_secret_know_each_others_logins(tmp_path: Path) -> None:
    keys, secret = tmp_path / "keys.toml", tmp_path / "secret"
    key = add_key(ApiKeyOptions("ann", file=keys, role=("view",)))
    secret.write_text("0123456789abcdef")
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for shared in (secret, secret, None):
            http = HttpSettings(http_port=free_port(), api_keys=keys, session_secret_file=shared)
            meta = MetaServer(MetaRouterSettings(replica=("chat=http://127.0.0.1:1",), http=http))
            url = f"http://127.0.0.1:{http.http_port}"
            urls.append(await stack.enter_async_context(serving(meta.serve, url, path="/health")))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
        entered = await client.post(f"{urls[0]}/login", json={"key": key})
        sent = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
        client.cookies.clear()
        answers = [
            (await client.get(f"{url}/v1/overview", headers=sent)).status_code for url in urls
        ]

    assert answers == [200, 200, 401]


async def test_without_keys_nobody_logs_in(tmp_path: Path) -> None:
    async with tenants("router, no keys", tmp_path, apart=False) as door:
        session = await door.http.get("/session")
        login = await door.http.get("/login")

    assert session.json() == {"login": False, "signed_in": False, "tenant": "", "roles": []}
    assert login.status_code == 404


def request(*headers: tuple[bytes, bytes], secure: bool = False) -> Request:
    return Request("GET", b"/", [*headers], secure=secure)


def test_over_tls_only_the_cookie_of_this_very_host_counts() -> None:
    plain, strict = b"kvmesh-session=a", b"__Host-kvmesh-session=b"
    both = (b"cookie", plain + b"; " + strict)

    assert cookie_of(request(both)) == "a"
    assert cookie_of(request(both, secure=True)) == "b"
    assert cookie_of(request(both, (b"x-forwarded-proto", b"https"))) == "b"
    assert cookie_of(request((b"cookie", plain), secure=True)) == ""
    assert cookie_of(request((b"cookie", plain), (b"cookie", plain))) == ""
    assert cookie_of(request((b"cookie", b";;=;kvmesh-session"))) == ""


def test_nobody_behind_the_door_gets_the_cookie() -> None:
    headers = [
        (b"cookie", b"a=1; kvmesh-session=x; b=2"),
        (b"cookie", b"__Host-kvmesh-session=y"),
        (b"cookie", b"c=kvmesh-session"),
        (b"x-other", b"kvmesh-session=z"),
    ]

    assert without_cookie(headers) == [
        (b"cookie", b"a=1; b=2"),
        (b"cookie", b"c=kvmesh-session"),
        (b"x-other", b"kvmesh-session=z"),
    ]
