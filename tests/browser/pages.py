"""A real Chromium and the pages it opens; fixtures and what is asked of every page."""

import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.browser.needs import CHROMIUM, WHY_NOT
from tests.integration.support.live_router import router
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

MARKS = [
    pytest.mark.browser,
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]
"""Of tests that share one browser: it takes seconds to start, and lives in one event loop."""

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PROMPT = "All that everybody asks about, again and again. " * 40
WAIT_MS = 60_000

expect.set_options(timeout=WAIT_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=2 * WAIT_MS
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that fails the test for any script error or refused resource."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await watched_page(context)
    yield page
    problems = page.__dict__.pop("problems")
    await context.close()
    assert problems == []


async def watched_page(context: BrowserContext) -> Page:
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda line: problems.append(line.text) if "Content Security" in line.text else None,
    )
    page.__dict__["problems"] = problems
    return page


@pytest_asyncio.fixture(loop_scope="module")
async def engines() -> AsyncIterator[list[str]]:
    made = [ReplayEndpoint(workers=1, token_s=0.01) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serve(engine)) for engine in made]


@pytest_asyncio.fixture(loop_scope="module")
async def alone(engines: list[str]) -> AsyncIterator[httpx.AsyncClient]:
    async with router(engines) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (parts) => parts.slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((all, one, at) => all + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const parts = rgb(getComputedStyle(one).backgroundColor);
      if (parts.length < 4 || parts[3] > 0.9) return parts;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || one instanceof SVGElement || !one.checkVisibility()) continue;
    const [a, b] = [light(rgb(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.add(`${one.outerHTML.slice(0, 80)}: ${ratio.toFixed(2)}`);
  }
  return [...faint];
}"""
