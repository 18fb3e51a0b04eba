"""What the dashboard says is wrong and of whom, in a real Chromium."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.roles import CostSettings
from tests.browser.needs import WHY_NOT
from tests.integration.support.failing_engine import (
    FailingEngine,
    answer_status,
    answer_well,
    failing_engines,
    never_answer,
)
from tests.integration.support.live_router import chat, meta_router, router

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Page, expect

from tests.browser.pages import MARKS, PROMPT

pytestmark = MARKS

RUNBOOK = "https://github.com/kvmesh/kvmesh/blob/main/docs/operate/runbook.md"

OLDER = """
const Real = window.EventSource;
window.EventSource = class extends Real {
  addEventListener(name, listener) {
    super.addEventListener(name, (event) => {
      const told = JSON.parse(event.data);
      for (const key of ["problems", "traffic", "models", "tenants"]) delete told[key];
      if (name !== "decisions") told.warnings = ["w0: an older router's words"];
      listener({ data: JSON.stringify(told) });
    });
  }
};
"""
"""Makes a page hear what a router of before problems and traffic would tell."""


@contextlib.asynccontextmanager
async def sick_fleet(
    engines: Sequence[FailingEngine],
) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """A router that deals requests in turn and takes an engine to hang after moments."""
    url_of = [one.url for one in engines]
    async with (
        router(
            url_of,
            cost=CostSettings(router_mode="round-robin"),
            failure=FailureSettings(hang_s=0.2),
            parity_sample=0,
        ) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield url, client


def hang(engine: FailingEngine) -> None:
    engine.answer, engine.healthy, engine.ready, engine.lists = never_answer, False, False, False


async def ask(client: httpx.AsyncClient, times: int = 1, **headers: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    for _ in range(times):
        await client.post("/v1/chat/completions", json=body, headers=headers)


@contextlib.asynccontextmanager
async def kept_asking(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Ask again and again, so that what fails goes on failing."""

    async def keep() -> None:
        while True:
            await ask(client)
            await asyncio.sleep(0.01)

    asking = asyncio.create_task(keep())
    try:
        yield
    finally:
        asking.cancel()


async def test_while_nothing_is_wrong_one_line_says_so(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")

    await expect(page.locator("#n-problems")).to_have_text(
        "Nothing is wrong: 3 of 3 workers taking requests"
    )
    await expect(page.locator("#problems table")).to_be_hidden()


async def test_a_hung_engine_is_called_hung_with_the_page_that_helps(page: Page) -> None:
    async with failing_engines(3) as engines, sick_fleet(engines) as (url, client):
        hung = engines[1]
        hang(hung)
        await ask(client, 4)
        await page.goto(f"{url}/")

        row = page.locator("#problems tbody tr", has_text="w1").first
        await expect(row).to_contain_text("critical")
        await expect(page.locator("#problems")).to_have_class("critical")
        await expect(row.locator("a")).to_have_attribute("href", f"{RUNBOOK}#hung-engine")
        state = page.locator("#workers tbody tr", has_text="w1").locator("td.state")
        await expect(state).to_have_text("hung: does not answer")
        top = await page.locator("#problems").bounding_box()
        assert top is not None
        assert top["y"] + top["height"] < 450
        assert (await page.title()).startswith("✖ ")

        hung.answer, hung.healthy, hung.ready, hung.lists = answer_well, True, True, True
        async with kept_asking(client):
            await expect(page.locator("#n-problems")).to_contain_text("Nothing is wrong")


async def test_many_of_a_kind_are_one_line_that_opens(page: Page) -> None:
    async with failing_engines(9) as engines, sick_fleet(engines) as (url, client):
        for one in engines[:4]:
            hang(one)
        await page.goto(f"{url}/")
        async with kept_asking(client):
            folded = page.locator("#problems button", has_text="and 1 more")
            await expect(folded).to_have_attribute("aria-expanded", "false")
            before = await page.locator("#problems tbody tr").count()
            await folded.click()
            await expect(page.locator("#problems tr.inner")).to_have_count(4)
            assert await page.locator("#problems tbody tr").count() >= before + 4


async def test_traffic_models_and_tenants_have_their_figures(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#model-part")).to_be_hidden()
    await expect(page.locator("#tenant-part")).to_be_hidden()

    body = {"model": "mock", "max_tokens": 8, "messages": [{"role": "user", "content": PROMPT}]}
    for number in range(4):
        tenant = "kitchen" if number % 2 else "<b>garden</b>"
        headers = {"x-kvmesh-tenant": tenant}
        await alone.post("/v1/chat/completions", json={**body, "stream": True}, headers=headers)
    assert (await alone.get("/v1/nothing")).status_code == 404

    tile = page.locator("#tiles > div")
    await expect(tile.filter(has_text="Requests failed")).to_contain_text(
        re.compile(r"Requests failed20 %.*4xx a second")
    )
    await expect(tile.filter(has_text="Tokens a second").locator("dd").first).not_to_have_text("0")
    await expect(tile.filter(has_text="Time per token")).to_contain_text("ms")
    await expect(page.locator("#models tbody th")).to_have_text(["mock"])
    await expect(page.locator("#tenants tbody tr")).to_have_count(2)
    await expect(page.locator("#tenants")).to_contain_text("<b>garden</b>")


async def test_the_curves_show_as_many_minutes_as_were_chosen(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await chat(alone, PROMPT, "first")
    await page.goto(f"{alone.base_url}/")
    requests = page.locator("figure", has_text="Requests a second")
    await expect(requests).to_contain_text("5 min ago")

    await page.get_by_role("button", name="10 min").click()

    await expect(requests).to_contain_text("10 min ago")
    await expect(requests.locator("path.ours")).to_be_attached()
    await expect(requests.get_by_text("failed or refused")).to_be_hidden()


async def test_what_an_older_router_does_not_tell_is_not_drawn(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.add_init_script(OLDER)
    await chat(alone, PROMPT, "asked")

    await page.goto(f"{alone.base_url}/")

    await expect(page.locator("#requests tbody .id")).to_have_count(1)
    await expect(page.locator("#warnings")).to_contain_text("an older router's words")
    await expect(page.locator("#tiles")).to_contain_text("Requests a second")
    await expect(page.locator("#tiles")).not_to_contain_text("Tokens a second")


async def test_a_meta_router_tells_the_problems_and_the_curves_of_its_buckets(
    page: Page,
) -> None:
    async with (
        failing_engines(4) as engines,
        sick_fleet(engines) as (url, client),
        meta_router([f"default={url}"]) as front,
    ):
        engines[0].answer = answer_status(500)
        async with kept_asking(client):
            await page.goto(f"{front}/")
            await expect(page.locator("#problems tbody tr", has_text="w0").first).to_be_visible()
            tokens = page.locator("figure", has_text="Requests a second")
            await expect(tokens.locator("path.ours")).to_be_attached()
