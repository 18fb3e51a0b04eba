"""Takes the documentation's pictures of the dashboard: `python -m tests.browser.screenshots`.

A real mesh under load, then with two engines in trouble; then 64 workers behind one router. The
pictures go to docs/images. Needs Chromium and playwright; takes about three minutes.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from kvmesh.settings.requests import FailureSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.browser.needs import CHROMIUM
from tests.browser.pages import FLAGS
from tests.integration.support.live_router import router
from tests.integration.support.two_tenants import tenants

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
DESK: Final = (1280, 1000)
PHONE: Final = (390, 844)
MODELS: Final = ("Qwen/Qwen3-32B", "Llama-3.3-70B")
ENGINES: Final = 4
WARM_S: Final = 75.0
FLEET_S: Final = 45.0
RATE: Final = 8.0
TALKS: Final = 16
FLEET_TALKS: Final = 160
SYSTEM: Final = "You are assistant number {}. Be kind. "


class Load:
    """Conversations and agents' sessions of two tenants, at `RATE` requests a second; three share
    a system prompt.
    """

    def __init__(self, client: httpx.AsyncClient, models: tuple[str, ...], talks: int) -> None:
        self._client = client
        self._models = models
        self._count = talks
        self._rng = random.Random(7)
        self._talks: dict[int, list[dict[str, str]]] = {}
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            task = asyncio.create_task(self._ask())
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(self._rng.expovariate(RATE))

    async def _ask(self) -> None:
        number = self._rng.randrange(self._count)
        fresh = [{"role": "system", "content": SYSTEM.format(number // 3) * 70}]
        talk = self._talks.setdefault(number, fresh)
        question = "And what about this? " * self._rng.randrange(4, 40)
        talk.append({"role": "user", "content": question})
        body = {
            "model": self._models[number % len(self._models)],
            "messages": list(talk),
            "max_tokens": self._rng.randrange(10, 80),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"x-kvmesh-tenant": "kitchen" if number % 3 else "garden"}
        if number % 4 == 3:
            headers["x-claude-code-session-id"] = f"session-{number}"
        if len(talk) > 24:
            self._talks[number] = fresh
        with contextlib.suppress(httpx.HTTPError):
            await self._client.post("/v1/chat/completions", json=body, headers=headers)


@contextlib.asynccontextmanager
async def loaded(url: str, models: tuple[str, ...], talks: int) -> AsyncIterator[None]:
    limits = httpx.Limits(max_connections=500)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        running = asyncio.create_task(Load(client, models, talks).run())
        try:
            yield
        finally:
            running.cancel()


@contextlib.asynccontextmanager
async def mesh(port: int) -> AsyncIterator[str]:
    """Run `kvmesh up` until the block ends."""
    names = [f"--served-model-name={one}" for one in MODELS]
    with TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvmesh", "up", "--http-port", str(port), *names),
            *("--engines", str(ENGINES), "--num-gpu-blocks", "8192", "--data-dir", folder),
            env=os.environ | {"KVMESH_SHOW_PREFIX_TEXT": "true"},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

        url = f"http://127.0.0.1:{port}"
        try:
            await until_ready(url, process)
            yield url
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(120), httpx.AsyncClient(base_url=url, timeout=20) as client:
        while True:
            if process.returncode is not None:
                raise SystemExit("kvmesh up ended; run it alone to see why")
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.2)


async def break_engine(url: str, fault: str) -> None:
    async with httpx.AsyncClient(timeout=20) as client:
        answer = await client.post(f"{url}/kvmesh/faults", json={"fail": [fault]})
        answer.raise_for_status()


@contextlib.asynccontextmanager
async def opened(
    browser: Browser, url: str, size: tuple[int, int] = DESK, *, dark: bool = False
) -> AsyncIterator[Page]:
    """Open a dashboard that is drawn and live."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
    )
    page = await context.new_page()
    await page.goto(f"{url}/")
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator("#requests tbody .id").first).to_be_attached()
    await expect(page.locator("figure").filter(has=page.locator("path.ours"))).to_have_count(3)
    yield page
    await context.close()


async def take(shown: Page | Locator, name: str) -> None:
    path = IMAGES / f"dashboard{name}.png"
    await shown.screenshot(path=path, animations="disabled")
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")  # noqa: T201


async def take_mesh(browser: Browser, port: int) -> None:
    async with mesh(port) as url, loaded(url, MODELS, TALKS):
        await asyncio.sleep(WARM_S)
        async with opened(browser, url) as page:
            await take(page, "")
            await page.locator("#requests tbody tr", has_text="done").first.locator(".id").click()
            await expect(page.locator("#detail h3").first).to_be_visible()
            await take(page, "-request")
            await page.keyboard.press("Escape")
            await expect(page.locator("#prefixes q").first).to_be_visible()
            await take(page.locator("#prefix-part"), "-prefixes")
            await page.locator("#workers .id").first.click()
            await page.get_by_role("button", name="Drain …").click()
            await take(page.locator("#worker"), "-drain")
        async with opened(browser, url, dark=True) as page:
            await take(page, "-dark")
        async with opened(browser, url, PHONE) as page:
            await take(page, "-phone")
        engines = [f"http://127.0.0.1:{port + 100 + number}" for number in range(ENGINES)]
        await break_engine(engines[1], "1:hang")
        await break_engine(engines[2], "1:500")
        async with opened(browser, url) as page:
            for worker in ("worker-1", "worker-2", "worker-1"):
                row = page.locator("#problems tbody tr", has_text=worker)
                await expect(row.first).to_be_visible()
            await take(page, "-trouble")


async def take_fleet(browser: Browser) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines: list[Mocker] = []
        for _ in range(16):
            options = MockerOptions(port=0, kv_events_port=0, replay_port=0, speedup_ratio=2.0)
            engine = Mocker(options)
            await engine.start()
            stack.push_async_callback(engine.stop)
            engines.append(engine)
        urls = [engines[number % len(engines)].url for number in range(64)]
        failure = FailureSettings(hang_s=1.0)
        url = await stack.enter_async_context(router(urls, failure=failure, parity_sample=0))
        await stack.enter_async_context(loaded(url, ("mock",), FLEET_TALKS))
        await asyncio.sleep(FLEET_S)
        for number in (3, 7, 9, 12):
            await break_engine(engines[number].url, "1:hang")
        page = await stack.enter_async_context(opened(browser, url, (1280, 1500)))
        await expect(page.locator("#problems button").first).to_be_visible(timeout=180_000)
        await take(page, "-64-workers")


async def take_login(browser: Browser) -> None:
    with TemporaryDirectory() as folder:
        async with tenants("router", Path(folder), apart=False) as door:
            context = await browser.new_context(viewport={"width": 720, "height": 400})
            page = await context.new_page()
            await page.goto(f"{door.url}/")
            await expect(page.get_by_label("API key")).to_be_visible()
            await take(page, "-login")
            await context.close()


async def take_all(port: int) -> None:
    IMAGES.mkdir(exist_ok=True)
    expect.set_options(timeout=60_000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        await take_login(browser)
        await take_fleet(browser)
        await take_mesh(browser, port)
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=18400, help="first of 500 free ports")
    asyncio.run(take_all(parser.parse_args().port))
