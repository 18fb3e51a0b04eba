"""What an operator does with the dashboard in a real Chromium: finds requests, sees changes."""

import asyncio
import re
from pathlib import Path
from typing import Literal

import httpx
import pytest

from kvmesh.core.insight.prefix_texts import EVERY_S
from kvmesh.settings.requests import AdmissionSettings, DecisionSettings
from tests.browser.needs import WHY_NOT
from tests.integration.support.live_router import chat, router
from tests.integration.support.two_tenants import tenants

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Page, expect

from tests.browser.pages import CONTRASTS, MARKS, PROMPT
from tests.browser.test_login import log_in

pytestmark = MARKS

SILENT = """
const Real = window.EventSource;
window.EventSource = class extends Real {
  addEventListener(name, listener) {
    super.addEventListener(name, (event) => {
      const told = JSON.parse(event.data);
      if (name === "decisions") return;
      told.decisions = [];
      listener({ data: JSON.stringify(told) });
    });
  }
};
"""
"""Makes a page hear of no request: what it shows then it has asked for."""

XSS = "<img/src=x/onerror=document.title=1>"


async def test_requests_are_found_by_tenant_and_by_id_that_the_stream_has_not_told(
    page: Page, alone: httpx.AsyncClient
) -> None:
    body = {"model": "mock", "max_tokens": 2, "messages": [{"role": "user", "content": PROMPT}]}
    for number, tenant in enumerate(("kitchen", "garden", XSS)):
        headers = {"x-kvmesh-tenant": tenant, "x-request-id": f"look-{number}"}
        await alone.post("/v1/chat/completions", json=body, headers=headers)
    await page.add_init_script(SILENT)
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#requests")).to_contain_text("No request yet")
    ids = page.locator("#requests tbody .id")
    box = page.get_by_role("searchbox", name="Search requests by id or tenant")

    await box.fill("tenant:garden")
    await expect(ids).to_have_text(["look-1"])
    await expect(page.locator("#tenants tbody tr")).to_have_count(1)
    await expect(page.locator("#workers tbody tr")).to_have_count(3)
    await box.fill("LOOK-0")
    await expect(ids).to_have_text(["look-0"])
    await ids.click()
    await expect(page.locator("#detail")).to_contain_text("Went to")
    await page.keyboard.press("Escape")
    await box.fill(XSS)
    await expect(ids).to_have_text(["look-2"])
    await expect(page.locator("#requests td.tenant")).to_have_text(XSS)
    assert await page.locator("img").count() == 1
    await box.fill("tenant:nobody")
    await expect(page.locator("#requests")).to_contain_text("No request matches")


async def test_what_changed_is_marked_on_the_curves_and_listed(
    page: Page, alone: httpx.AsyncClient
) -> None:
    await page.goto(f"{alone.base_url}/")
    marks = page.locator("#marks li")
    await expect(marks.first).to_contain_text("default-0: started")
    body = {"formula": "lmetric", "at_once": True}
    assert (await alone.put("/admin/policy", json=body)).status_code == 200
    assert (await alone.put("/admin/admission", json={"max_queued": 7})).status_code == 200

    await expect(page.locator("#marks")).to_contain_text("default-0: kv:lmetric on trial")
    await expect(page.locator("#marks .policy").last).to_contain_text("kept")
    await expect(page.locator("#marks .setting")).to_contain_text("bounds of admission changed")
    flags = page.locator("figure").first.locator(".flag title")
    await expect(flags.first).to_be_attached()
    assert "lmetric" in "".join(await flags.all_text_contents())


TROUBLED = """
const Real = window.EventSource;
window.EventSource = class extends Real {
  addEventListener(name, listener) {
    super.addEventListener(name, (event) => {
      const told = JSON.parse(event.data);
      for (const one of told.workers ?? []) {
        one.worker += "-of-a-long-name-7d9f8b6c5-x2x4z";
        one.why_not = "ejected, 17 of 20 failed (500), asked again in 14.9 s";
        Object.assign(one, { usable: false, failures: 17, attempts: 20, active_requests: 12345 });
      }
      listener({ data: JSON.stringify(told) });
    });
  }
};
"""
"""Makes a page hear of workers with long names, all of them in trouble."""


@pytest.mark.parametrize("width", [390, 1440])
async def test_no_table_is_clipped_and_no_page_scrolls_sideways(
    page: Page, alone: httpx.AsyncClient, width: int
) -> None:
    await page.add_init_script(TROUBLED)
    await page.set_viewport_size({"width": width, "height": 900})
    for number in range(4):
        await chat(alone, PROMPT + "sweet " * 200 * (number % 2), f"wide-{number}")
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#requests tbody .id").first).to_be_visible()
    await expect(page.locator("#prefixes tbody tr").first).to_be_visible()

    clipped = await page.evaluate(
        """() => [...document.querySelectorAll('.scroll')]
             .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
             .map((one) => `${one.firstElementChild.id}: ${one.scrollWidth}`)"""
    )
    whole, prefixes = await page.evaluate(
        """() => [document.documentElement, document.getElementById('prefix-part')]
             .map((one) => one.getBoundingClientRect().height)"""
    )

    assert clipped == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert prefixes <= whole / 6


async def test_a_worker_is_drained_after_a_question_and_used_again(
    page: Page, engines: list[str]
) -> None:
    async with router(engines[:2]) as url:
        await page.goto(f"{url}/")
        row = page.locator("#workers tbody tr", has_text="w0")
        dialog = page.get_by_role("dialog", name="Worker w0")
        await row.get_by_role("button", name="w0").focus()
        await page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("Time to first token")
        await dialog.get_by_role("button", name="Drain …").click()
        question = dialog.get_by_role("group", name="Drain w0? 1 worker of bucket default stays")
        await expect(question.get_by_role("button", name="Cancel")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(question).to_be_hidden()

        await dialog.get_by_role("button", name="Drain …").click()
        await dialog.get_by_role("button", name="Drain w0").click()

        await expect(dialog.get_by_role("status")).to_contain_text("Told to drain")
        await expect(row.locator("td.state")).to_have_text("draining")
        await expect(page.locator("#tiles")).to_contain_text("1 drains")
        await expect(page.locator("#marks .drain")).to_contain_text("w0: drains")
        await dialog.get_by_role("button", name="Use it again …").click()
        await dialog.get_by_role("button", name="Use w0").click()
        await expect(row.locator("td.state")).not_to_have_text("draining")
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()


async def test_a_token_that_is_asked_for_is_asked_for(
    page: Page, engines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("sesame")
    limits = AdmissionSettings(admin_token_file=tmp_path / "token")
    async with router(engines[:1], admission=limits) as url:
        await page.goto(f"{url}/")
        await page.locator("#workers .id").click()
        dialog = page.get_by_role("dialog", name="Worker w0")
        await dialog.get_by_role("button", name="Drain …").click()
        await expect(dialog).to_contain_text("No worker of bucket default would be left")
        await dialog.get_by_role("button", name="Drain w0").click()
        await expect(dialog.get_by_role("status")).to_contain_text("send the token")
        await dialog.get_by_label("Admin token").fill("sesame")
        await dialog.get_by_role("button", name="Drain w0").click()
        await expect(dialog.get_by_role("status")).to_contain_text("Told to drain")


async def test_settings_in_force_are_shown_when_asked_for(page: Page, engines: list[str]) -> None:
    async with router(engines[:1]) as url, httpx.AsyncClient(base_url=url) as client:
        await client.put("/admin/admission", json={"max_queued": 7})
        await page.goto(f"{url}/")
        await page.get_by_text("Settings in force").click()
        changed = page.locator("#settings tr", has_text="max-queued").first
        await expect(changed).to_contain_text("7")
        await expect(changed).to_contain_text("changed while it runs")
        await expect(page.locator("#settings")).not_to_contain_text("kv-overlap-score-weight")
        await page.get_by_role("button", name="With those at their defaults").click()
        await expect(page.locator("#settings")).to_contain_text("kv-overlap-score-weight")


async def test_who_may_not_operate_is_not_asked_to(page: Page, tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        await page.goto(f"{door.url}/")
        await log_in(page, door.keys["ann"])
        await expect(page.locator("#settings-part")).to_be_hidden()
        await page.locator("#workers .id").click()
        dialog = page.get_by_role("dialog", name="Worker w0")
        await expect(dialog).to_contain_text("State")
        await expect(dialog.get_by_role("button")).to_have_text(["Close"])
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Log out").click()
        await log_in(page, door.keys["boss"])
        await page.locator("#workers .id").click()
        await dialog.get_by_role("button", name="Drain …").click()
        await dialog.get_by_role("button", name="Drain w0").click()
        await expect(dialog.get_by_role("status")).to_contain_text("Told to drain")


async def test_prefixes_say_what_they_begin_with_where_that_is_kept(
    page: Page, engines: list[str]
) -> None:
    kept = DecisionSettings(show_prefix_text=True)
    async with (
        router(engines[:1], decision=kept) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        for number in range(3):
            await chat(client, f"{XSS} {PROMPT}", f"said-{number}")
            await asyncio.sleep(EVERY_S)
        await page.goto(f"{url}/")
        words = page.locator("#prefixes q").first
        await expect(words).to_contain_text(XSS)
        await expect(words).to_contain_text("All that everybody asks about")
        assert await page.locator("img").count() == 1
        assert await page.title() != "1"


async def test_prefixes_are_told_by_their_keys_where_no_text_is_kept(
    page: Page, alone: httpx.AsyncClient
) -> None:
    for number in range(3):
        await chat(alone, PROMPT, f"unsaid-{number}")
    await page.goto(f"{alone.base_url}/")
    await expect(page.locator("#prefixes code").first).to_have_text(re.compile("^[0-9a-f]{8}$"))
    assert "everybody" not in (await alone.get("/v1/overview")).text


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_what_operators_read_can_be_read(
    page: Page, engines: list[str], scheme: Literal["light", "dark"]
) -> None:
    kept = DecisionSettings(show_prefix_text=True)
    async with (
        router(engines[:1], decision=kept) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        await chat(client, PROMPT, "read-0")
        await chat(client, PROMPT, "read-1")
        await page.emulate_media(color_scheme=scheme)
        await page.goto(f"{url}/")
        await expect(page.locator("#marks li").first).to_be_visible()
        await expect(page.locator("#prefixes q").first).to_be_visible()
        await page.get_by_text("Settings in force").click()
        await expect(page.locator("#settings table").first).to_be_visible()
        await page.locator("#workers .id").click()
        await page.get_by_role("button", name="Drain …").click()

        assert await page.evaluate(CONTRASTS) == []
