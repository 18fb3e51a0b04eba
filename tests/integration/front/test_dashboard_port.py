"""The dashboard on a port of its own: no page shares the origin of what engines answer."""

from pathlib import Path

import httpx
import pytest

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from tests.integration.support import live_router

pytestmark = pytest.mark.integration

PAGES = ("/", "/dashboard", "/dashboard/dashboard.js", "/login", "/session")
VIEWS = ("/v1/overview", "/v1/programs", "/ready", "/health")
ALL = (*PAGES, *VIEWS, "/v1/models", "/metrics")


async def test_a_dashboard_port_takes_the_page_and_its_login_and_serves_no_inference(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys.toml"
    key = add_key(ApiKeyOptions("ann", file=keys, role=("infer", "view")))
    ports = [live_router.free_port() for _ in range(4)]
    settings = [
        HttpSettings(http_port=port, dashboard_port=own, api_keys=keys)
        for port, own in (ports[:2], ports[2:])
    ]
    meta = MetaServer(
        MetaRouterSettings(replica=(f"chat=http://127.0.0.1:{ports[0]}",), http=settings[1])
    )
    bearer = {"authorization": f"Bearer {key}"}
    body = {"model": "mock", "max_tokens": 1, "prompt": "hello"}
    async with (
        live_router.mockers() as (engine,),
        live_router.serving(
            RouterServer(
                RouterSettings(kv_events=False, worker=(f"w0={engine.url}",), http=settings[0])
            ).serve,
            f"http://127.0.0.1:{ports[0]}",
        ),
        live_router.serving(meta.serve, f"http://127.0.0.1:{ports[2]}"),
        httpx.AsyncClient(timeout=60, headers=bearer) as client,
        httpx.AsyncClient(timeout=60, headers={"accept": "text/html"}) as anyone,
    ):
        for port, own in (ports[:2], ports[2:]):
            front, shown = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"

            at_front = {path: (await client.get(front + path)).status_code for path in ALL}
            behind = {path: (await client.get(shown + path)).status_code for path in ALL}
            sent = await client.post(front + "/v1/completions", json=body)
            misled = await client.post(shown + "/v1/completions", json=body)
            login = [await client.post(front + "/login"), await client.post(front + "/logout")]
            asked = await anyone.get(shown + "/dashboard")
            unasked = await anyone.get(front + "/dashboard")
            await anyone.post(shown + "/login", data={"key": key})
            cookies = len(anyone.cookies)
            # A browser sends a cookie to every port of its host.
            looked = [await anyone.get(base + "/v1/overview") for base in (front, shown)]
            anyone.cookies.clear()

            assert at_front == dict.fromkeys(PAGES, 404) | dict.fromkeys(VIEWS, 200) | {
                "/v1/models": 200,
                "/metrics": 403,
            }
            assert behind == dict.fromkeys(PAGES, 200) | dict.fromkeys(VIEWS, 200) | {
                "/v1/models": 404,
                "/metrics": 403,
            }
            assert (sent.status_code, misled.status_code) == (200, 404)
            assert [one.status_code for one in login] == [404, 404]
            assert "dashboard port" in login[0].text
            assert asked.status_code == unasked.status_code == 401
            assert asked.headers["content-type"].startswith("text/html")
            assert unasked.headers["content-type"] == "application/json"
            assert cookies == 1
            assert [one.status_code for one in looked] == [401, 200]
