"""Pages of other origins: which may call, what a browser is told before, and what stays closed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.front.cors import check_origin
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from tests.integration.http.peers import JSON, Turn, Upstream, posts
from tests.integration.http.peers import answer as answer_of
from tests.integration.support.live_router import COMPLETION, MODELS, free_port, router, serving

pytestmark = pytest.mark.integration

APP = "https://app.example"
EVIL = "https://evil.example"
BODY = {"model": "mock", "max_tokens": 1, "prompt": "hello"}
ASKING = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-kvmesh-session",
}


async def open_to_all(turn: Turn) -> None:
    """Let every page read the answer, as vLLM does."""
    body = COMPLETION if turn.head.startswith(b"POST") else MODELS
    allowed = b"Access-Control-Allow-Origin: *", b"Access-Control-Allow-Credentials: true"
    turn.send(answer_of(body, JSON, *allowed))


class Door:
    def __init__(self, client: httpx.AsyncClient, engine: Upstream, key: str) -> None:
        self.client = client
        self.engine = engine
        self.key = key

    async def preflight(self, path: str, origin: str, **more: str) -> httpx.Response:
        headers = ASKING | {"origin": origin} | more
        return await self.client.options(path, headers=headers)


@pytest.fixture
async def door(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    origins: tuple[str, ...] = request.param
    keys = tmp_path / "keys.toml"
    key = add_key(ApiKeyOptions("ann", file=keys, role=("operate",)))
    http = HttpSettings(http_port=free_port(), api_keys=keys, cors_origin=origins)
    async with Upstream.running(open_to_all) as engine:
        worker = (f"w0={engine.origin}",)
        replica = RouterServer(
            RouterSettings(
                kv_events=False, worker=worker, router_id="r0", parity_sample=0, http=http
            )
        )
        async with (
            serving(replica.serve, f"http://127.0.0.1:{http.http_port}") as front,
            httpx.AsyncClient(base_url=front, timeout=60) as client,
        ):
            yield Door(client, engine, key)


def reported(answer: httpx.Response) -> dict[str, str]:
    return {
        name.removeprefix("access-control-"): value
        for name, value in answer.headers.items()
        if name.startswith("access-control-")
    }


@pytest.mark.parametrize("door", [(APP, "http://localhost:3000")], indirect=True)
async def test_a_page_that_may_call_asks_first_and_reads_all_answers(door: Door) -> None:
    asked = await door.preflight("/v1/completions", APP)
    local = await door.preflight("/v1/anything", "http://LOCALHOST:3000")
    bearer = {"origin": APP, "authorization": f"Bearer {door.key}"}
    served = await door.client.post("/v1/completions", json=BODY, headers=bearer)
    streamed = await door.client.get("/v1/overview", headers=bearer)
    unknown = await door.client.post("/v1/completions", json=BODY, headers={"origin": APP})
    long = await door.client.post(
        "/v1/completions", json=BODY | {"prompt": "x" * 500_000}, headers={"origin": APP}
    )
    plain = await door.client.get("/health")

    assert (asked.status_code, asked.content) == (204, b"")
    assert reported(asked) == {
        "allow-origin": APP,
        "allow-methods": "GET, HEAD, POST, DELETE",
        "allow-headers": ASKING["access-control-request-headers"],
        "max-age": "600",
    }
    assert "origin" in asked.headers["vary"]
    assert reported(local)["allow-origin"] == "http://LOCALHOST:3000"
    assert [one.status_code for one in (served, streamed, unknown, long)] == [200, 200, 401, 401]
    for answer in (served, streamed, unknown, long):
        assert reported(answer) == {"allow-origin": APP, "expose-headers": "*"}
        assert answer.headers["vary"] == "origin"
    assert (reported(plain), plain.headers["vary"]) == ({}, "origin")
    (headers,) = posts(door.engine.turns)
    assert "origin" not in headers


@pytest.mark.parametrize("door", [(APP,)], indirect=True)
async def test_others_and_what_changes_the_mesh_stay_closed(door: Door) -> None:
    refused = [
        await door.preflight(path, origin)
        for path, origin in (
            ("/v1/completions", EVIL),
            ("/v1/completions", "null"),
            ("/v1/completions", f"{APP}.evil.example"),
            ("/v1/completions", f"{APP}:444"),
            ("/admin/policy", APP),
            ("/login", APP),
            ("/logout", APP),
            ("/session", APP),
        )
    ]
    bearer = {"origin": EVIL, "authorization": f"Bearer {door.key}"}
    read = await door.client.post("/v1/completions", json=BODY, headers=bearer)
    login = await door.client.post(
        "/login", content=f"key={door.key}", headers={"origin": APP, "content-type": "text/plain"}
    )
    odd = await door.preflight(
        "/v1/completions", APP, **{"access-control-request-headers": "a b, c;d"}
    )
    huge = await door.preflight(
        "/v1/completions", APP, **{"access-control-request-headers": "a" * 2000}
    )

    assert {one.status_code for one in refused} <= {401, 405}
    assert [reported(one) for one in refused] == [{}] * len(refused)
    assert reported(read) == {}
    assert (login.status_code, reported(login)) == (403, {})
    assert "allow-headers" not in reported(odd)
    assert "allow-headers" not in reported(huge)


@pytest.mark.parametrize("door", [("*",)], indirect=True)
async def test_a_star_lets_every_page_call_and_none_by_the_browsers_own_credentials(
    door: Door,
) -> None:
    asked = await door.preflight("/v1/completions", EVIL)
    bearer = {"origin": EVIL, "authorization": f"Bearer {door.key}"}
    served = await door.client.post("/v1/completions", json=BODY, headers=bearer)
    basic = await door.client.post(
        "/v1/completions", json=BODY, headers={"origin": EVIL}, auth=("u", door.key)
    )

    assert reported(asked)["allow-origin"] == reported(served)["allow-origin"] == "*"
    assert "allow-credentials" not in reported(served)
    assert (served.status_code, basic.status_code) == (200, 401)


@pytest.mark.parametrize("door", [()], indirect=True)
async def test_off_by_default_even_where_the_engine_lets_everybody(door: Door) -> None:
    asked = await door.preflight("/v1/completions", APP)
    bearer = {"origin": APP, "authorization": f"Bearer {door.key}"}
    served = await door.client.post("/v1/completions", json=BODY, headers=bearer)

    assert (asked.status_code, reported(asked)) == (401, {})
    assert (served.status_code, reported(served)) == (200, {})


@pytest.mark.parametrize(
    "text",
    ["", "app.example", "https://", "ftp://a", "https://a/", "https://a/b", "https://u@a", "null",
     "https://a:x", "https://a?b", "https://[a"],
)  # fmt: skip
def test_what_is_no_origin_ends_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="--cors-origin"):
        check_origin(text)


def test_origins_are_compared_as_browsers_write_them() -> None:
    assert check_origin("https://App.Example:443") == "https://app.example"
    assert check_origin("http://localhost:3000") == "http://localhost:3000"
    assert check_origin("http://[::1]:80") == "http://[::1]"
    assert check_origin("*") == "*"


@pytest.mark.parametrize("origins", [(), (APP,)])
async def test_another_sites_page_has_no_engine_work_for_it(origins: tuple[str, ...]) -> None:
    text = json.dumps(BODY)
    site, kinds = "sec-fetch-site", ("text/plain", "application/x-www-form-urlencoded")
    simple = [{"origin": EVIL, "content-type": kind} for kind in kinds]
    simple += [{"content-type": kinds[0], site: "cross-site"}, {"origin": "null"}]
    http = HttpSettings(http_port=free_port(), cors_origin=origins)
    async with (
        Upstream.running(open_to_all) as engine,
        router([engine.origin], bucket="b", parity_sample=0) as inner,
        serving(
            MetaServer(MetaRouterSettings(replica=(f"b={inner}",), http=http)).serve,
            f"http://127.0.0.1:{http.http_port}",
        ) as outer,
    ):
        for front in (inner, outer):
            async with httpx.AsyncClient(base_url=front, timeout=60) as client:
                for path in ("/v1/completions", "/v1/anything", "/tokenize"):
                    for headers in simple:
                        got = await client.post(path, content=text, headers=headers)
                        assert (got.status_code, got.json()["error"]["code"]) == (
                            403,
                            "foreign_page",
                        )
                # A browser's connection is kept: the same head again.
                again = await client.post("/v1/completions", content=text, headers=simple[0])
                assert again.status_code == 403
                assert not posts(engine.turns)
        async with httpx.AsyncClient(base_url=outer, timeout=60) as client:
            page = {"origin": APP, "content-type": "text/plain", site: "cross-site"}
            allowed = [await client.post("/v1/completions", content=text, headers=page)]
            allowed.append(await client.post("/v1/completions", content=text, headers=page))
            curl = await client.post(
                "/v1/completions", content=text, headers=simple[1] | {"origin": outer}
            )
            form = {"content-type": kinds[1]}
            plain = await client.post("/v1/completions", content=text, headers=form)

    assert {one.status_code for one in allowed} == ({200} if origins else {403})
    assert (curl.status_code, plain.status_code) == (200, 200)
