"""A dashboard behind API keys in a real Chromium: a key is asked for once."""

from pathlib import Path

import pytest

from tests.browser.needs import WHY_NOT
from tests.integration.support.two_tenants import tenants

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Page, expect

from tests.browser.pages import MARKS

pytestmark = MARKS

STREAM = """
const Real = window.EventSource;
window.EventSource = class extends Real {
  constructor(url) {
    super(url);
    window.stream = this;
  }
};
"""
"""Lets a test end the page's stream as an answer that is none does."""


async def log_in(page: Page, key: str) -> None:
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Log in").click()


async def test_a_key_is_asked_for_once_and_left_by_a_button(page: Page, tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        await door.chat("ann", "hello", x_request_id="of-ann")
        await page.goto(f"{door.url}/")
        await log_in(page, "no such key")
        await expect(page.get_by_role("alert")).to_have_text("This key is not known.")

        await log_in(page, door.keys["boss"])

        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#requests tbody .id")).to_have_count(1)
        await expect(page.locator("#tiles")).to_be_visible()
        await page.locator("#requests .id").click()
        await expect(page.locator("#detail")).to_contain_text("Went to")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="10 min").click()
        await expect(page.locator("#n-problems")).to_contain_text("Nothing is wrong")
        (cookie,) = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert door.keys["boss"] not in cookie["value"]
        assert await page.evaluate("document.cookie") == ""

        await page.get_by_role("button", name="Log out").click()

        await expect(page.get_by_label("API key")).to_be_visible()
        await page.goto(f"{door.url}/dashboard")
        await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_tenants_key_shows_its_own_and_says_so(page: Page, tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        await door.chat("ann", "hello", x_request_id="of-ann")
        await door.chat("ben", "hello", x_request_id="of-ben")
        await page.goto(f"{door.url}/")
        await log_in(page, door.keys["ann"])

        await expect(page.locator("#requests tbody .id")).to_have_count(1)
        await expect(page.locator("#requests")).to_contain_text("of-ann")
        await expect(page.locator("#limited")).to_contain_text("its own tenant")
        await expect(page.locator("#tiles")).to_be_hidden()
        await expect(page.locator("#charts")).to_be_hidden()
        await expect(page.locator("#workers tbody tr")).to_have_count(1)


async def test_a_session_that_is_over_leads_back_to_the_login(page: Page, tmp_path: Path) -> None:
    async with tenants("router", tmp_path, apart=False) as door:
        await page.add_init_script(STREAM)
        await page.goto(f"{door.url}/")
        await log_in(page, door.keys["boss"])
        await expect(page.locator("#link")).to_have_text("live")

        await page.context.clear_cookies()
        await page.evaluate("stream.close(); stream.dispatchEvent(new Event('error'))")

        await expect(page.get_by_label("API key")).to_be_visible()
