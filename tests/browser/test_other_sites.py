"""Pages of other sites in a real Chromium whose user is logged in: what they try, and get."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.browser.needs import WHY_NOT
from tests.integration.support.failing_engine import FailingEngine
from tests.integration.support.live_router import engine, mocker_options, router
from tests.integration.support.two_tenants import Tenants, tenants

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Page, expect

from tests.browser.pages import MARKS

pytestmark = MARKS

TRY = """async ([url, init]) => {
  try {
    const answer = await fetch(url, init);
    return {status: answer.status, type: answer.type, text: await answer.text(),
            headers: Object.fromEntries(answer.headers)};
  } catch (error) {
    return {refused: String(error)};
  }
}"""
CHAT = '{"model": "mock", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}'


@contextlib.asynccontextmanager
async def other_site() -> AsyncIterator[str]:
    """Serve an empty page of another site: 127.0.0.1 and localhost are two."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<p>hello"
            )
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}"


async def attempt(page: Page, url: str, **init: Any) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate(TRY, [url, init])
    return found


async def log_in(page: Page, door: Tenants) -> None:
    await page.goto(f"{door.url}/")
    await page.get_by_label("API key").fill(door.keys["boss"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator("#link")).to_have_text("live")


async def test_they_read_nothing_and_do_nothing_in_the_users_name(
    page: Page, tmp_path: Path
) -> None:
    async with tenants("router", tmp_path, apart=False) as door, other_site() as site:
        await log_in(page, door)
        own = await attempt(page, f"{door.url}/v1/chat/completions", method="POST", body=CHAT)
        read = await attempt(page, f"{door.url}/v1/overview")
        await page.goto(site)
        tries = [
            await attempt(page, f"{door.url}/v1/overview", credentials="include"),
            await attempt(
                page, f"{door.url}/admin/policy", method="PUT", body="{}", credentials="include"
            ),
        ]
        blind = [
            await attempt(
                page, door.url + path, method="POST", body=body, mode="no-cors",
                credentials="include",
            )
            for path, body in (
                ("/logout", ""),
                ("/login", f"key={door.keys['ann']}"),
                ("/v1/chat/completions", CHAT),
            )
        ]  # fmt: skip
        await page.set_content(f'<iframe src="{door.url}/dashboard" width=900></iframe>')
        frame = page.frame_locator("iframe")
        await expect(frame.locator("#link")).to_have_count(0)
        await page.goto(f"{door.url}/")
        await expect(page.locator("#link")).to_have_text("live")
        sent = await door.get("boss", "/v1/decisions")
        session = await attempt(page, f"{door.url}/session")
        page.__dict__["problems"][:] = [
            one for one in page.__dict__["problems"] if "frame-ancestors" not in one
        ]

    # Not even the page itself may infer by the cookie.
    assert (own["status"], read["status"]) == (401, 200)
    assert all("refused" in one for one in tries), tries
    assert {one["type"] for one in blind} == {"opaque"}
    assert sent["decisions"] == []
    assert '"tenant":"house"' in session["text"]


PAGE = (
    b"<script>document.cookie='by=script';"
    b"fetch('/v1/overview').then(a => document.title = a.status)</script>"
)


class Hostile(FailingEngine):
    """Answers each unknown path with a page, a cookie and a place to go to; `asked` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.server = HttpServer(self.serve)

    def serve(self, exchange: Exchange) -> None:
        path = exchange.request.path
        if exchange.request.method != "GET" or not path.startswith("/v1/evil"):
            super().serve(exchange)
            return
        self.asked.append(path)
        status = 302 if path.endswith("redirect") else 200
        headers = ((b"set-cookie", b"by=engine; Path=/"), (b"location", b"/logout?by=engine"))
        exchange.respond(status, PAGE, content_type=b"text/html", headers=headers)


async def test_what_an_engine_answers_does_not_act_on_the_dashboards_origin(page: Page) -> None:
    engine = Hostile()
    await engine.server.start("127.0.0.1", 0)
    async with router([engine.url], parity_sample=0) as url, other_site() as site:
        await page.goto(f"{url}/dashboard")
        read = await attempt(page, f"{url}/v1/evil")
        led = await attempt(page, f"{url}/v1/evil/redirect")
        shown = await page.goto(f"{url}/v1/evil/page")
        title, cookies = await page.title(), await page.context.cookies()
        kind = None if shown is None else shown.headers.get("content-type")
        script = await page.evaluate("document.scripts.length")
        await page.goto(site)
        forced = await attempt(
            page, f"{url}/v1/chat/completions", method="POST", body=CHAT, mode="no-cors"
        )
        async with httpx.AsyncClient(base_url=url) as client:
            sent = (await client.get("/v1/decisions")).json()
    await engine.server.close()
    page.__dict__["problems"].clear()

    assert engine.asked[0] == "/v1/evil"
    assert read["status"] == 200
    assert not {"set-cookie", "location"} & set(read["headers"])
    assert led["status"] == 502
    assert (title, script) == ("", 0)
    assert kind is not None
    assert "html" not in kind
    assert cookies == []
    assert forced["type"] == "opaque"
    assert engine.prompts == []
    # What was got of the engine is all that was routed.
    assert len(sent["decisions"]) == len(engine.asked) == 3


async def test_a_browser_app_calls_where_its_origin_is_named(page: Page) -> None:
    async with other_site() as site, contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(engine(mocker_options(16, 192)))
        doors = [
            await stack.enter_async_context(
                router([made.url], cors_origin=origins, parity_sample=0)
            )
            for origins in ((site,), ())
        ]
        await page.goto(site)
        init = {
            "method": "POST",
            "body": CHAT,
            "headers": {
                "content-type": "application/json",
                "authorization": "Bearer x",
                "x-kvmesh-tenant": "app",
            },
        }
        named, unnamed = [
            await attempt(page, f"{url}/v1/chat/completions", **init) for url in doors
        ]
        admin = await attempt(page, f"{doors[0]}/admin/policy")
        async with httpx.AsyncClient(base_url=doors[1]) as client:
            other = (await client.get("/v1/decisions")).json()

    assert named["status"] == 200
    assert {"x-kvmesh-worker", "x-kvmesh-overlap-blocks", "x-request-id"} <= set(named["headers"])
    assert "refused" in unnamed
    assert "refused" in admin
    assert other["decisions"] == []
