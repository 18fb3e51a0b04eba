"""API keys and client certificates at real front doors."""

import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings, UpstreamSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from tests.integration.http.peers import JSON, Turn, Upstream, posts
from tests.integration.http.peers import answer as answer_of
from tests.integration.support import waiting
from tests.integration.support.live_router import COMPLETION, MODELS, free_port, serving

pytestmark = pytest.mark.integration

TLS = Path(__file__).parents[2] / "fixtures/tls"
BODY = {"model": "mock", "max_tokens": 1, "prompt": "hello"}


async def complete(turn: Turn) -> None:
    turn.send(answer_of(COMPLETION if turn.head.startswith(b"POST") else MODELS, JSON))


@pytest.fixture
async def engine() -> AsyncIterator[Upstream]:
    """An engine that answers every completion and remembers what headers came."""
    async with Upstream.running(complete) as made:
        yield made


def router(
    engine: Upstream, http: HttpSettings, upstream: UpstreamSettings | None = None
) -> RouterServer:
    return RouterServer(
        RouterSettings(
            kv_events=False,
            worker=(f"w0={engine.origin}",),
            router_id="r0",
            parity_sample=0,
            http=http,
            upstream=upstream or UpstreamSettings(),
        )
    )


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_only_known_keys_are_served_and_none_reaches_the_engine(
    engine: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    key = add_key(ApiKeyOptions("ann", file=file, tenant="kitchen", role=("operate",)))
    http = HttpSettings(http_port=free_port(), api_keys=file)
    async with (
        serving(router(engine, http).serve, f"http://127.0.0.1:{http.http_port}") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        spoofed = {"x-kvmesh-tenant": "boss"}
        answers = [
            await client.post("/v1/completions", json=BODY, headers=headers)
            for headers in ({}, bearer("kvm-guess"), bearer(key) | spoofed, {"x-api-key": key})
        ]
        openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="kvm-wrong", max_retries=0)
        with pytest.raises(AuthenticationError):
            await openai.models.list()
        page = await client.get("/", headers={"accept": "text/html"})
        shown = await client.get("/", auth=("anybody", key))
        broken = await client.get("/", headers={"authorization": "Basic %%%"})
        cold = [(await client.get(path)).status_code for path in ("/", "/metrics", "/v1/status")]
        await openai.close()

    assert [one.status_code for one in answers] == [401, 401, 200, 200]
    assert answers[0].headers["www-authenticate"].startswith("Bearer")
    assert answers[0].json()["error"]["type"] == "authentication_error"
    assert cold == [401, 401, 401]
    assert page.headers["www-authenticate"].startswith("Bearer")
    assert page.status_code == 401
    assert '<form method="post" action="/login">' in page.text
    assert (shown.status_code, broken.status_code) == (200, 401)
    assert len(posts(engine.turns)) == 2
    for headers in posts(engine.turns):
        assert not {"authorization", "x-api-key"} & set(headers)
        assert headers["x-kvmesh-tenant"] == "kitchen"
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


async def test_keys_are_added_and_taken_while_it_serves(engine: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    first = add_key(ApiKeyOptions("first", file=file))
    http = HttpSettings(http_port=free_port(), api_keys=file)
    async with (
        serving(router(engine, http).serve, f"http://127.0.0.1:{http.http_port}") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        second = add_key(ApiKeyOptions("second", file=file))
        await until(client, second, 200)
        file.write_text("this is no file of keys")
        assert (await client.get("/v1/models", headers=bearer(first))).status_code == 200
        file.unlink()
        third = add_key(ApiKeyOptions("third", file=file))
        os.utime(file)
        await until(client, third, 200)
        await until(client, first, 401)


async def until(client: httpx.AsyncClient, key: str, status: int) -> None:
    async def answered() -> bool:
        return (await client.get("/v1/models", headers=bearer(key))).status_code == status

    await waiting.until(answered)


async def test_a_meta_router_shows_its_own_key_and_tells_the_tenant(
    engine: Upstream, tmp_path: Path
) -> None:
    clients, routers, engines = (tmp_path / name for name in ("c.toml", "r.toml", "engine.key"))
    key = add_key(ApiKeyOptions("ann", file=clients, tenant="kitchen", role=("operate",)))
    own = tmp_path / "meta.key"
    own.write_text(add_key(ApiKeyOptions("meta", file=routers, proxy=True)) + "\n")
    engines.write_text("engine-secret")
    inner = HttpSettings(http_port=free_port(), api_keys=routers)
    outer = HttpSettings(http_port=free_port(), api_keys=clients)
    server = router(engine, inner, UpstreamSettings(upstream_key_file=engines))
    async with serving(server.serve, f"http://127.0.0.1:{inner.http_port}") as url:
        meta = MetaServer(
            MetaRouterSettings(
                replica=(f"default={url}",),
                http=outer,
                upstream=UpstreamSettings(upstream_key_file=own),
            )
        )
        async with (
            serving(meta.serve, f"http://127.0.0.1:{outer.http_port}") as front,
            httpx.AsyncClient(base_url=front, headers=bearer(key), timeout=60) as client,
        ):
            answer = await client.post("/v1/completions", json=BODY)
            overview = (await client.get("/v1/overview")).json()
            models = (await client.get("/v1/models")).json()["data"]

    assert answer.status_code == 200
    assert meta.meta.table.models() == tuple(one["id"] for one in models) != ()
    (headers,) = posts(engine.turns)
    assert headers["authorization"] == "Bearer engine-secret"
    assert headers["x-kvmesh-tenant"] == "kitchen"
    assert [one["worker"] for one in overview["workers"]] == ["w0"]


async def test_only_signed_clients_may_connect(engine: Upstream, tmp_path: Path) -> None:
    cert, key = TLS / "cert.pem", TLS / "key.pem"
    http = HttpSettings(
        http_host="localhost",
        http_port=free_port(),
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=cert,
    )
    trusting = ssl.create_default_context(cafile=cert)
    signed = ssl.create_default_context(cafile=cert)
    signed.load_cert_chain(cert, key)
    url = f"https://localhost:{http.http_port}"
    async with serving(router(engine, http).serve, url, signed):
        async with httpx.AsyncClient(verify=signed, timeout=60) as client:
            answer = await client.post(f"{url}/v1/completions", json=BODY)
        async with httpx.AsyncClient(verify=trusting, timeout=60) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"{url}/v1/models")
        both = tmp_path / "both.pem"
        both.write_bytes(cert.read_bytes() + key.read_bytes())
        meta = MetaServer(
            MetaRouterSettings(
                replica=(f"default={url}",),
                http=HttpSettings(http_port=free_port()),
                upstream=UpstreamSettings(
                    upstream_ca=cert,
                    upstream_cert=both,
                ),
            )
        )
        front = f"http://127.0.0.1:{meta.settings.http.http_port}"
        async with (
            serving(meta.serve, front),
            httpx.AsyncClient(base_url=front, timeout=60) as client,
        ):
            through = await client.post("/v1/completions", json=BODY)

    assert (answer.status_code, through.status_code) == (200, 200)


def test_a_name_that_is_taken_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    add_key(ApiKeyOptions("ann", file=file))
    before = file.read_text()

    with pytest.raises(ConfigError):
        add_key(ApiKeyOptions("ann", file=file))
    with pytest.raises(ConfigError):
        add_key(ApiKeyOptions("\n", file=file))

    assert file.read_text() == before


def test_the_command_prints_the_key_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvmesh", "api-key", "ann", "--file", str(tmp_path / "k.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("kvm-")
    assert done.stdout.strip() not in (tmp_path / "k.toml").read_text()
