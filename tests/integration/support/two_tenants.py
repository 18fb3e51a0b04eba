"""One engine behind a front door of any kind, and the keys of two tenants."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.core.admission.paths import Role
from kvmesh.settings.http import HttpSettings, UpstreamSettings
from kvmesh.settings.requests import SessionSettings, TenantSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import free_port, mockers, serving

Kind = Literal[
    "router",
    "router, no keys",
    "meta, proxy key",
    "meta, open routers",
    "meta, keys passed on",
]

HOLDERS: dict[str, tuple[str, tuple[Role, ...]]] = {
    "ann": ("kitchen", ("infer", "view")),
    "ann's program": ("kitchen", ("infer",)),
    "ben": ("cellar", ("infer", "view")),
    "watcher": ("cellar", ("view",)),
    "boss": ("house", ("operate",)),
}
"""Whose key is of which tenant, and what it may."""

SECRET = "the recipe that nobody else may know " * 30


class Tenants:
    """Clients of one front door, each with its own key; `engine` is what is behind."""

    def __init__(self, url: str, keys: dict[str, str], engine: Mocker) -> None:
        self.url = url
        self.keys = keys
        self.engine = engine
        self.http = httpx.AsyncClient(base_url=url, timeout=60)

    async def send(
        self, holder: str, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if holder:
            named["authorization"] = f"Bearer {self.keys[holder]}"
        return await self.http.request(method, path, json=body, headers=named)

    async def get(self, holder: str, path: str) -> Any:
        answer = await self.send(holder, "GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def chat(self, holder: str, text: str, **headers: str) -> httpx.Response:
        answer = await self.send(holder, "POST", "/v1/chat/completions", chat(text), **headers)
        assert answer.status_code == 200, answer.text
        return answer


def chat(text: str) -> dict[str, Any]:
    return {"model": "mock", "max_tokens": 2, "messages": [{"role": "user", "content": text}]}


def cached(answer: httpx.Response) -> int:
    """Return how much of its prompt the engine says was cached."""
    found: int = (answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return found


@contextlib.asynccontextmanager
async def tenants(
    kind: Kind, folder: Path, *, apart: bool, sharing: str = ""
) -> AsyncIterator[Tenants]:
    """Serve a door; with `apart` tenants share no cached block but what `sharing` (TOML) allows."""
    async with contextlib.AsyncExitStack() as stack:
        (engine,) = await stack.enter_async_context(mockers())
        keys = {
            name: add_key(ApiKeyOptions(name, file=folder / "keys.toml", tenant=tenant, role=roles))
            for name, (tenant, roles) in HOLDERS.items()
        }
        kept = TenantSettings()
        if apart:
            (folder / "secret").write_text("0123456789abcdef")
            kept = TenantSettings(tenant_secret_file=folder / "secret")
        if sharing:
            (folder / "sharing.toml").write_text(sharing)
            kept = dataclasses.replace(kept, tenant_sharing_file=folder / "sharing.toml")
        keyed = HttpSettings(http_port=free_port(), api_keys=folder / "keys.toml")
        if kind == "router, no keys":
            bare = dataclasses.replace(keyed, api_keys=None)
            url = await stack.enter_async_context(_router(engine, bare, kept))
        elif kind == "router":
            url = await stack.enter_async_context(_router(engine, keyed, kept))
        else:
            url = await stack.enter_async_context(_meta(kind, folder, engine, keyed, kept))
        made = Tenants(url, keys, engine)
        stack.push_async_callback(made.http.aclose)
        yield made


@contextlib.asynccontextmanager
async def _router(engine: Mocker, http: HttpSettings, kept: TenantSettings) -> AsyncIterator[str]:
    settings = RouterSettings(
        kv_events=False,
        worker=(f"w0={engine.url}",),
        router_id="r0",
        parity_sample=0,
        http=http,
        tenant=kept,
        session=SessionSettings(session_affinity="hard"),
    )
    async with serving(RouterServer(settings).serve, f"http://127.0.0.1:{http.http_port}") as url:
        yield url


@contextlib.asynccontextmanager
async def _meta(
    kind: Kind, folder: Path, engine: Mocker, http: HttpSettings, kept: TenantSettings
) -> AsyncIterator[str]:
    inner, upstream = HttpSettings(http_port=free_port()), UpstreamSettings()
    if kind == "meta, proxy key":
        (folder / "meta.key").write_text(
            add_key(ApiKeyOptions("meta", file=folder / "routers.toml", proxy=True))
        )
        inner = dataclasses.replace(inner, api_keys=folder / "routers.toml")
        upstream = UpstreamSettings(upstream_key_file=folder / "meta.key")
    elif kind == "meta, keys passed on":
        inner = dataclasses.replace(inner, api_keys=http.api_keys)
    async with _router(engine, inner, kept) as url:
        meta = MetaServer(
            MetaRouterSettings(
                replica=(f"default={url}",), http=http, upstream=upstream, tenant=kept
            )
        )
        async with serving(meta.serve, f"http://127.0.0.1:{http.http_port}") as front:
            yield front
