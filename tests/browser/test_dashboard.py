"""The dashboard in a real Chromium: it loads, lives, filters, explains, and survives a restart."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.core.programs import swaps
from kvmesh.settings.roles import CostSettings
from tests.browser.needs import WHY_NOT
from tests.integration.support.failing_engine import answer_status, failing_engines
from tests.integration.support.live_router import (
    chat,
    engine,
    free_port,
    meta_router,
    mocker_options,
    mockers,
    router,
)
from tests.unit.app.prompts.tokenizer_models import write_model

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Browser, Page, expect

from tests.browser.pages import CONTRASTS, MARKS, PROMPT, watched_page

pytestmark = MARKS


@contextlib.asynccontextmanager
async def slow_fleet() -> AsyncIterator[
    tuple[httpx.AsyncClient, Callable[[str, int], Coroutine[Any, Any, httpx.Response]]]
]:
    """An engine with room for one large context, and how agents ask it; the first is small."""
    slow = "linear,prefill_per_token=0.2,decode_base=20"
    options = msgspec.structs.replace(mocker_options(16, 192), timing_profile=slow)
    async with (
        engine(options) as mocker,
        router([mocker.url]) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):

        async def ask(agent: str, tokens: int) -> httpx.Response:
            content = f"{agent} has to do this. " * (10 if agent == "pausing" else 90)
            body = {
                "model": "mock",
                "max_tokens": tokens,
                "messages": [{"role": "user", "content": content}],
            }
            headers = {"x-claude-code-session-id": agent}
            return await client.post("/v1/chat/completions", json=body, headers=headers)

        yield client, ask


async def test_it_loads_and_shows_requests_as_they_come(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator("#workers tbody tr")).to_have_count(3)
    await expect(page.locator("#requests")).to_contain_text("No request yet")

    await chat(alone, PROMPT, "first")
    await chat(alone, PROMPT, "second")

    rows = page.locator("#requests tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("second")
    await expect(rows.first).to_contain_text("done")
    await expect(rows.first).to_contain_text("costs least of 3 workers")
    await expect(page.locator("#tiles")).to_contain_text("2 so far, 0 failed")
    saved = page.locator("#tiles > div").first
    await expect(saved).to_contain_text(
        re.compile(r"Prefill tokens saved\d.*\d\d % of prompts so far, worth \d.* engine-seconds$")
    )
    await expect(page.locator("#tiles")).to_contain_text(re.compile(r"Prompt cached\d\d %"))
    await expect(page.locator("figure svg path.ours").first).to_be_attached()
    await expect(page.locator("#replicas")).to_contain_text("default-0")
    assert await page.title() == "kvmesh · default-0"
    worded = await page.evaluate(
        """import("/dashboard/parts.js").then((parts) => [
            parts.milliseconds(9.4), parts.milliseconds(1500), parts.span(7200),
            parts.stateOf({ state: "finished", status: 500 })[0],
        ])"""
    )
    assert worded == ["9.4 ms", "1.5 s", "2.0 h", "status 500"]


async def test_programs_show_who_runs_who_waits_and_who_pauses(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swaps, "SWAP", 1e6)  # else it waits for no longer than a look at the page
    async with slow_fleet() as (client, ask):
        await page.goto(f"{client.base_url}/")
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#program-part")).to_be_hidden()

        await ask("pausing", 4)
        rows = page.locator("#programs tbody tr")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("pauses")
        await expect(rows.first).to_contain_text("claude-code")
        first = asyncio.create_task(ask("running", 400))
        await expect(page.locator("#programs")).to_contain_text("runs")
        second = asyncio.create_task(ask("waiting", 4))
        await expect(rows.first).to_contain_text("waits")
        await expect(rows.first).to_contain_text("nowhere")
        await expect(rows.first).to_contain_text("waited longest")
        await expect(page.locator("#n-programs")).to_contain_text("3 live, 1 of them wait")
        await page.fill("#filter", "runs")
        await page.fill("#filter", "running")
        await expect(rows).to_have_count(1)
        await page.fill("#filter", "")
        for task in (first, second):
            assert (await task).status_code == 200
        await expect(page.locator("#programs")).not_to_contain_text("waits")


async def test_the_hottest_prefixes_tell_size_savings_and_holders(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#prefixes")).to_contain_text("No beginning is shared")

    for number in range(12):
        await chat(alone, PROMPT + f"{number // 2} " * 400, f"request-{number}")

    rows = page.locator("#prefixes tbody tr")
    await expect(rows.first).to_contain_text(re.compile(r"^[0-9a-f]{8}default100 %[\d,]+\d\d %"))
    await expect(rows.first.locator("td").last).to_have_text(re.compile(r"^w\d"))
    await expect(rows.first.locator(".saves")).to_have_text(re.compile(r"^[\d.]+K$"))
    few = await rows.count()
    if few == 10:
        await page.get_by_role("button", name="Show all").click()
        await expect(rows.nth(10)).to_be_visible()
    levels = await page.locator("#prefixes tbody th").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).paddingLeft)"
    )
    assert levels[0] == "0px"
    assert len(set(levels)) > 1
    await page.locator("#filter").fill("no-such-worker")
    await expect(page.locator("#prefixes")).to_contain_text("No prefix matches")


async def test_a_tokenizer_that_disagrees_with_the_engines_is_said_on_top(
    page: Page, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "small")
    async with (
        mockers(tokenizer=model) as (mocker,),
        router([mocker.url], kv_events=True) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        meta_router([f"default={url}"]) as front,
    ):
        await page.goto(f"{url}/")
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#n-problems")).to_contain_text("Nothing is wrong")
        doubted = "our token ids of model mock are not its engine's"
        async with asyncio.timeout(60):
            while doubted not in (await client.get("/ready")).text:
                await chat(client, PROMPT)
        await expect(page.locator("#n-problems")).to_have_text("1 warning")
        await expect(page.locator("#problems")).to_contain_text(doubted)
        await page.goto(f"{front}/")
        await expect(page.locator("#problems")).to_contain_text(doubted)
        await expect(page.locator("#problems")).to_contain_text("default-0")


async def test_strange_request_ids_stay_text(page: Page, alone: httpx.AsyncClient) -> None:
    strange = "<img/src=x/onerror=document.title=1>"
    await page.goto(f"{alone.base_url}/dashboard")

    await chat(alone, PROMPT, strange)

    await page.locator("#requests .id").click()
    await expect(page.locator("#detail-title")).to_have_text(f"Request {strange}")
    await expect(page.locator("#detail")).to_contain_text("every considered worker")
    assert await page.locator("img").count() == 1


async def test_a_row_tells_every_workers_terms_by_keyboard_alone(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await chat(alone, PROMPT, "asked")
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#requests tbody tr")).to_have_count(1)

    await page.locator("#requests .id").focus()
    await page.keyboard.press("Enter")

    dialog = page.locator("#detail")
    await expect(dialog).to_contain_text("Formula for w0: ")
    await expect(dialog.locator("tbody tr")).to_have_count(3)
    await expect(dialog.locator("tr.chosen")).to_have_count(1)
    await expect(dialog).to_contain_text("Formula: the smallest wins")
    assert page.url.endswith("#request=asked")

    await page.keyboard.press("Escape")

    await expect(dialog).to_be_hidden()
    assert await page.evaluate("document.activeElement.className") == "id"


async def test_a_worker_that_fails_is_told_from_one_that_serves(page: Page) -> None:
    settings: dict[str, Any] = {"cost": CostSettings(router_mode="round-robin"), "parity_sample": 0}
    async with (
        failing_engines(2) as sick,
        router([one.url for one in sick], **settings) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        sick[0].answer = answer_status(500)

        async def ask(request_id: str) -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
            headers = {"x-request-id": request_id}
            await client.post("/v1/chat/completions", json=body, headers=headers)

        async def keep_asking() -> None:
            """Try the worker again whenever it may be: it goes on failing."""
            while True:
                await ask("again")
                await asyncio.sleep(0.05)

        for number in range(10):
            await ask(f"asked-{number}")
        asking = asyncio.create_task(keep_asking())
        await page.goto(f"{url}/#request=asked-9")

        await expect(page.locator("#detail")).to_contain_text(re.compile("Left outw0: ejected, "))
        await page.locator("#detail button").click()
        row = page.locator("#workers tbody tr", has_text="w0")
        await expect(row.locator("td.state")).to_contain_text("ejected, ")
        await expect(row.locator("td.state")).to_have_class(re.compile("bad"))
        await expect(row.locator("td").nth(2)).to_have_text(re.compile(r"^\d+ of \d+$"))
        await expect(page.locator("#tiles")).to_contain_text("1 failing")
        failing = page.locator("#problems tbody tr", has_text="w0")
        await expect(failing.first).to_contain_text("ejected")
        asking.cancel()


async def test_an_address_opens_a_request(page: Page, alone: httpx.AsyncClient) -> None:
    await chat(alone, PROMPT, "known")

    await page.goto(f"{alone.base_url}/#request=known")
    await expect(page.locator("#detail")).to_contain_text("Went to")
    await page.locator("#detail button").click()
    await page.goto(f"{alone.base_url}/?again#request=lost")

    await expect(page.locator("#detail")).to_contain_text("request 'lost' is not known")


async def test_a_policy_on_trial_shows_both_arms_and_then_what_became_of_it(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#policy-part")).to_be_hidden()

    body = {"formula": "lmetric"}
    assert (await alone.put("/admin/policy", json=body)).status_code == 200
    await chat(alone, PROMPT, "first")

    arms = page.locator("#arms tbody tr")
    await expect(arms).to_have_count(2)
    await expect(arms.nth(0)).to_contain_text("baseline")
    await expect(arms.nth(1)).to_contain_text("kv:lmetric")
    await expect(arms.nth(1)).to_contain_text("50 %")
    await expect(page.locator("#policy-part p").first).to_contain_text(
        "window 1 (baseline), open: 0 of"
    )

    assert (await alone.delete("/admin/policy")).status_code == 200
    steps = page.locator("#policies tbody tr")
    await expect(page.locator("#arms")).to_be_hidden()
    await expect(steps).to_have_count(2)
    await expect(steps.first).to_contain_text("returned from")
    await expect(steps.first).to_contain_text("asked for at /admin/policy")


async def test_the_filter_narrows_all_tables_and_says_so(
    page: Page, alone: httpx.AsyncClient
) -> None:
    for number in range(3):
        await chat(alone, PROMPT, f"ask-{number}", router_mode="round-robin")
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#requests tbody tr")).to_have_count(3)

    await page.get_by_role("searchbox").fill("w1")

    await expect(page.locator("#workers tbody tr")).to_have_count(1)
    await expect(page.locator("#requests tbody tr")).to_have_count(1)
    await expect(page.locator("#n-workers")).to_have_text("1 of 3")
    await expect(page.locator("#found")).to_contain_text("1 worker, 1 request")

    await page.get_by_role("searchbox").fill("nothing like it")
    await expect(page.locator("#workers")).to_contain_text("No worker matches")
    await page.get_by_role("searchbox").fill("")
    await expect(page.locator("#workers tbody tr")).to_have_count(3)


async def test_workers_sort_by_a_columns_head(page: Page, alone: httpx.AsyncClient) -> None:
    await page.goto(f"{alone.base_url}/")
    first = page.locator("#workers tbody tr").first
    await expect(first).to_contain_text("w0")

    await page.get_by_role("button", name="Worker", exact=True).click()

    await expect(first).to_contain_text("w2")
    head = page.locator("#workers thead th").first
    await expect(head).to_have_attribute("aria-sort", "descending")


async def test_pause_holds_the_picture_and_going_on_catches_up(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#workers tbody tr")).to_have_count(3)

    await page.get_by_role("button", name="Pause").click()
    await chat(alone, PROMPT, "unseen")
    async with alone.stream("GET", "/v1/events") as events:
        async for line in events.aiter_lines():
            if line.startswith("event: overview"):
                break
    await expect(page.locator("#requests tbody .id")).to_have_count(0)

    await page.get_by_role("button", name="Go on").click()

    await expect(page.locator("#requests tbody .id")).to_have_count(1)
    await expect(page.locator("#link")).to_have_text("live")


async def test_it_survives_a_restart_of_the_router(page: Page, engines: list[str]) -> None:
    port = free_port()
    async with (
        router(engines, port=port) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        await page.goto(f"{url}/")
        await chat(client, PROMPT, "first-life")
        await expect(page.locator("#requests")).to_contain_text("first-life")

    await expect(page.locator("#link")).to_have_text("reconnecting …")
    gone = page.locator("#problems tbody tr", has_text="does not answer this page")
    await expect(gone).to_contain_text("critical")
    assert (await page.title()).startswith("✖ 1 · ")
    async with (
        router(engines, port=port) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        await expect(page.locator("#link")).to_have_text("live")
        await chat(client, PROMPT, "second-life")

        await expect(page.locator("#requests")).to_contain_text("second-life")
        await expect(page.locator("#requests")).not_to_contain_text("first-life")
        await expect(gone).to_have_count(0)


async def test_the_meta_router_shows_every_bucket(page: Page, engines: list[str]) -> None:
    async with (
        router(engines[:1], bucket="chat") as chat_url,
        router(engines[1:], bucket="code") as code_url,
        meta_router([f"chat={chat_url}", f"code={code_url}"]) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        await chat(client, PROMPT, "in-code", bucket="code")
        await page.goto(f"{url}/")

        await expect(page.locator("#buckets tbody tr")).to_have_count(2)
        await expect(page.locator("#replicas tbody tr")).to_have_count(2)
        await expect(page.locator("#workers tbody tr")).to_have_count(3)
        await page.locator("#requests .id").click()
        await expect(page.locator("#detail")).to_contain_text("code / code-0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_a_phone_and_64_workers_in_light_and_dark(
    browser: Browser, engines: list[str], scheme: str
) -> None:
    many = [engines[number % 3] for number in range(64)]
    async with router(many) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        await chat(client, PROMPT)
        context = await browser.new_context(
            viewport={"width": 390, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = await watched_page(context)
        await page.goto(f"{url}/")
        await expect(page.locator("#workers tbody tr")).to_have_count(64)
        await expect(page.locator("#requests tbody tr")).to_have_count(1)

        await expect(page.locator("#map button")).to_have_count(64)
        await page.locator("#map button").nth(40).click()
        await expect(page.locator("#workers tbody tr")).to_have_count(1)
        await expect(page.locator("#workers tbody th")).to_have_text("w40")
        await page.fill("#filter", "")

        width = await page.evaluate("document.documentElement.scrollWidth")
        faint = await page.evaluate(CONTRASTS)

        await context.close()
    assert width <= 390
    assert faint == []


async def test_everything_has_a_name_for_a_screen_reader(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await chat(alone, PROMPT, "named")
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#requests .id")).to_have_count(1)

    nameless = await page.evaluate(
        """() => [...document.querySelectorAll('button, input, [role=region], [role=group]')]
             .filter((one) => !one.hidden && !one.textContent.trim() && !one.labels?.length
               && !one.getAttribute('aria-label') && !one.getAttribute('aria-labelledby'))
             .map((one) => one.outerHTML)"""
    )
    headless = await page.evaluate(
        """() => [...document.querySelectorAll('tbody tr')]
             .filter((row) => !row.querySelector('th[scope=row], .empty')).length"""
    )
    charts = page.get_by_role("img", name=re.compile("Time to first token: last minute median"))

    assert nameless == []
    assert headless == 0
    await expect(charts).to_have_count(1)
    assert await page.get_by_role("status").count() == 4
    assert await page.locator("html").get_attribute("lang") == "en"
